"""Types for what scheduling asks of its strategy and of a checkpoint manager."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from replicax.cluster.patience import Patience
from replicax.contracts.variable_access import VariableLike
from replicax.parameter_server.compiling.placing import VariablePlacer
from replicax.parameter_server.compiling.traced_step import ScopedStrategy
from replicax.parameter_server.scheduling.server_actors import ServerActors
from replicax.ray_cluster import RayCluster


class ServedStrategy(ScopedStrategy, Protocol):
    """A strategy whose variables live on servers."""

    cluster: RayCluster
    servers: ServerActors
    placer: VariablePlacer
    lazy_rows: bool  # Updates leave alone the rows of a table that a step has not looked up.
    max_staleness: int | None  # by how many updates variables may be behind; None for any number
    patience: Patience  # with its actors

    @property
    def advice(self) -> set[str]:
        """The advice that users have had about their steps."""

    def variables(self) -> Sequence[VariableLike]:
        """Returns all variables that are still in use."""

    def send_changes(self, variables: Sequence[VariableLike]) -> None:
        """Gives servers the values that were assigned on the coordinator."""


class CheckpointSource(Protocol):
    """Where the values come from that variables get when a server was lost: an `rx.CheckpointManager`."""

    @property
    def directory(self) -> str | os.PathLike[str]:
        """The folder of the checkpoints."""

    def restore_or_initialize(self) -> object:
        """Restores the newest checkpoint; returns None if there is none."""
