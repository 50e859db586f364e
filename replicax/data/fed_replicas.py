"""The replicas that a dataset feeds. Where workers come and go, they are others in each world."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jax.sharding import Mesh

import replicax.contracts.worlds as worlds
from replicax.data.worker_channel import InputWorkers


class Receivers(NamedTuple):
    """The replicas that a dataset feeds.

    Attributes:
        num_replicas: Number of replicas of the strategy.
        mesh_for: Returns the mesh of the strategy's first k devices.
        workers: The processes of the strategy, which feed them.
    """

    num_replicas: int
    mesh_for: Callable[[int], Mesh]
    workers: InputWorkers

    @classmethod
    def of(cls, num_replicas: int, mesh_for: Callable[[int], Mesh], workers: InputWorkers | None) -> Receivers:
        """Returns the receivers; without `workers` this process feeds all of them."""
        return cls(num_replicas, mesh_for, workers or InputWorkers(0, ("worker:0",), (num_replicas,)))


class ReceiversByWorld:
    """Asks in each world who the receivers are.

    Args:
        first: The receivers in the present world.
        anew: Returns them in a later world; None if they never change.

    Attributes:
        latest: The number of the world in which `now` was called last, and its receivers. Any thread may read it.
    """

    def __init__(self, first: Receivers, anew: Callable[[], Receivers] | None):
        self._anew = anew
        self.latest = (worlds.number(), first)

    def now(self) -> tuple[int, Receivers]:
        """Returns the number of the present world and its receivers; for the thread that moves between worlds."""
        number = worlds.number()
        if number != self.latest[0]:
            self.latest = (number, self.latest[1] if self._anew is None else self._anew())
        return self.latest
