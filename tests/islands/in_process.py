"""A meeting of islands that are threads of one process, each with devices of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import jax
import numpy as np

from replicax.errors import BarrierTimeoutError
from replicax.group.membership.meeting import Quorum


class Threads:
    """Islands of one process. Each thread asks for its `member`."""

    def __init__(self, size: int, timeout_s: float = 300.0):
        self.size, self.timeout_s = size, timeout_s
        self._barrier = threading.Barrier(size)
        self._brought: list[object] = [None] * size

    def member(self, index: int) -> InProcess:
        """Returns the meeting as island number `index` sees it."""
        return InProcess(self, index)

    def exchanged(self, index: int, brought: object, what: str) -> list[object]:
        """Returns what all islands have brought, after all have come; BarrierTimeoutError if one fails to come."""
        try:
            self._brought[index] = brought
            self._barrier.wait(self.timeout_s)
            found = list(self._brought)
            self._barrier.wait(self.timeout_s)
        except threading.BrokenBarrierError:
            raise BarrierTimeoutError(what, round(1000 * self.timeout_s), index, ()) from None
        return found

    def give_up(self) -> None:
        """Ends the waiting of the other threads: an island has failed."""
        self._barrier.abort()


class InProcess:
    """The meeting as one of the threads sees it; see `membership.Meeting`."""

    def __init__(self, threads: Threads, index: int):
        self._threads, self.index, self.size = threads, index, threads.size
        self.names = tuple(f"island {i}" for i in range(threads.size))
        self._number = 0

    def gather(self, what: str, note: bytes) -> Quorum:
        """Waits for all islands."""
        self._number += 1
        notes = self._threads.exchanged(self.index, note, what)
        return Quorum(self._number, tuple(range(self.size)), tuple(each for each in notes if isinstance(each, bytes)))

    def total(self, quorum: Quorum, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the sums over all islands, added up in their order."""
        brought = self._threads.exchanged(self.index, [np.asarray(value) for value in values], "a sum")
        columns = zip(*(each for each in brought if isinstance(each, list)), strict=True)
        sums = [np.add.reduce(column, dtype=column[0].dtype) for column in columns]
        return [jax.device_put(each, value.sharding) for each, value in zip(sums, values, strict=True)]
