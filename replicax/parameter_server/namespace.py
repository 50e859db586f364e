"""`rx.coordinator`: scheduling functions on the workers of a `ParameterServerStrategy`."""

from typing import TYPE_CHECKING

from replicax.contracts.advice import not_found
from replicax.parameter_server.compiling.recording import current_worker_index as get_current_worker_index
from replicax.parameter_server.coordinator import ClusterCoordinator
from replicax.parameter_server.scheduling.remote_values import (
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValues,
    RemoteValue,
)
from replicax.parameter_server.scheduling.stats import Stats

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValues",
    "RemoteValue",
    "Stats",
    "get_current_worker_index",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise not_found("replicax.coordinator", name)
