"""Strategies: where training runs and how its parts are put together.

Those that shard variables have rules for layouts to load: they are in `fully_sharded.py` and `layout.py` only.
"""

from replicax.strategies.base import Strategy
from replicax.strategies.central_storage import CentralStorageStrategy
from replicax.strategies.current_strategy import (
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
    set_strategy,
)
from replicax.strategies.elastic import Elastic
from replicax.strategies.gradient_memory import GradientMemory
from replicax.strategies.mirrored import MirroredStrategy
from replicax.strategies.multi_worker import MultiWorkerMirroredStrategy
from replicax.strategies.one_device import OneDeviceStrategy
from replicax.strategies.replica_context import ReplicaContext
from replicax.strategies.tpu import TPUStrategy

__all__ = [
    "CentralStorageStrategy",
    "Elastic",
    "GradientMemory",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ReplicaContext",
    "Strategy",
    "TPUStrategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "set_strategy",
]
