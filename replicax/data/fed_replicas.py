"""The replicas that a dataset feeds. Where workers come and go, they are others in each world."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax.sharding import Mesh

import replicax.contracts.worlds as worlds
from replicax.data.worker_channel import InputWorkers


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
        self.latest = (worlds.number(), first)  # of the world in which `now` was called last; any thread may read it

    def now(self) -> tuple[int, Receivers]:
        """Returns the number of the present world and its receivers; for the thread that moves between worlds."""
        number = worlds.number()
        if number != self.latest[0]:
            self.latest = (number, self.latest[1] if self._anew is None else self._anew())
        return self.latest
