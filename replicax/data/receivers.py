"""The replicas that a dataset feeds, and the processes that read for them: others in each world, if workers change."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

from jax.sharding import Mesh

from replicax.cluster.key_value_store import ServiceStore, Store
from replicax.contracts.group import current_group
from replicax.errors import ArgumentError


@dataclasses.dataclass(frozen=True)
class InputWorkers:
    """The processes that train together."""

    index: int  # of this one
    names: tuple[str, ...]  # in messages
    replicas: tuple[int, ...]  # for how many each reads data; each replica counts once
    store: Store = dataclasses.field(default_factory=ServiceStore)  # where they leave messages for each other
    # For each worker, the first replica with devices there and the one after the last; by default those that it reads
    # for, which follow one another. The devices of a replica may belong to several workers.
    fed: tuple[tuple[int, int], ...] | None = None

    @property
    def count(self) -> int:
        return len(self.names)

    @property
    def others(self) -> list[int]:
        """The indices of all workers but this one."""
        return [worker for worker in range(self.count) if worker != self.index]

    def first_replica(self, worker: int) -> int:
        """Returns the id of the first replica that a worker reads for, if they follow one another."""
        return self._first_replicas[worker]

    @functools.cached_property
    def _first_replicas(self) -> list[int]:
        return [*itertools.accumulate(self.replicas, initial=0)]

    def replicas_fed(self, worker: int) -> tuple[int, int]:
        """Returns which replicas a worker puts rows on devices for: the first and the one after the last."""
        if self.fed is not None:
            return self.fed[worker]
        first = self.first_replica(worker)
        return first, first + self.replicas[worker]

    def check_all_read(self) -> None:
        """Checks that each worker can read data of its own: that it has a replica to read for."""
        idle = [name for name, replicas in zip(self.names, self.replicas, strict=True) if not replicas]
        if idle:
            raise ArgumentError(
                f"{', '.join(idle)} would read data for no replica: there are {sum(self.replicas)} replicas on "
                f"{self.count} workers. Let all workers read the same global batches: auto_shard_policy='data'."
            )


class Receivers(NamedTuple):
    """The replicas that a dataset feeds."""

    num_replicas: int
    mesh_for: Callable[[int], Mesh]  # of the strategy's first k devices
    workers: InputWorkers  # the processes of the strategy, which feed the replicas

    @classmethod
    def of(cls, num_replicas: int, mesh_for: Callable[[int], Mesh], workers: InputWorkers | None) -> Receivers:
        """Returns the receivers; without `workers` this process feeds all of them."""
        return cls(num_replicas, mesh_for, workers or InputWorkers(0, ("worker:0",), (num_replicas,)))


class ReceiversByWorld:
    """The receivers in each world."""

    def __init__(self, first: Receivers, anew: Callable[[], Receivers] | None):
        self._anew = anew  # returns the receivers in a later world; None if they never change
        self.latest = (
            current_group().number,
            first,
        )  # of the world in which `now` was called last; any thread may read it

    def now(self) -> tuple[int, Receivers]:
        """Returns the number of the present world and its receivers; for the thread that moves between worlds."""
        number = current_group().number
        if number != self.latest[0]:
            self.latest = (number, self.latest[1] if self._anew is None else self._anew())
        return self.latest
