"""Who does which step when: decisions only, nothing here waits or talks to anybody."""

from __future__ import annotations

import collections
from typing import Any


class Ledger:
    """The steps that are to be done, and who is doing them.

    With `max_staleness` no step is begun that could make the gradients of another one older than that: while a step is
    under way, at most `max_staleness` others may have been or be under way. 0 means one at a time: exact.

    Args:
        workers: How many workers there are.
        depth: How many steps a worker may have at once.
        max_staleness: By how many updates the variables may be behind when an update from them is applied; None for
            any number.
    """

    def __init__(self, workers: int, depth: int = 2, max_staleness: int | None = None):
        self._depth = depth if max_staleness is None else 1
        self._max_staleness = max_staleness
        self._queue: collections.deque[Any] = collections.deque()
        self._held: dict[int, list[Any]] = {worker: [] for worker in range(workers)}
        self._ready: set[int] = set()
        self._crossed: dict[int, int] = {}  # for each step under way, how many others may be applied before it
        self._next = 0

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._held)

    @property
    def queued(self) -> int:
        """Number of steps that nobody has begun."""
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """Number of steps that workers have."""
        return sum(map(len, self._held.values()))

    @property
    def ready(self) -> frozenset[int]:
        """The workers that can take steps."""
        return frozenset(self._ready)

    def add(self, step: Any) -> None:
        """Puts a step at the end of the queue."""
        self._queue.append(step)

    def held_by(self, worker: int) -> list[Any]:
        """Returns the steps that a worker has, the oldest first."""
        return list(self._held[worker])

    def worker_ready(self, worker: int) -> None:
        """Notes that a worker can take steps."""
        self._ready.add(worker)

    def worker_away(self, worker: int) -> None:
        """Notes that a worker takes no more steps; it has those that it has, until it is lost."""
        self._ready.discard(worker)

    def worker_lost(self, worker: int) -> list[Any]:
        """Notes that a worker has gone; what it had goes back to the head of the queue, and is returned."""
        self._ready.discard(worker)
        lost, self._held[worker] = self._held[worker], []
        for step in reversed(lost):
            self._crossed.pop(id(step), None)
            self._queue.appendleft(step)
        return lost

    def assignments(self) -> list[tuple[int, Any]]:
        """Hands out steps: the oldest first, to the workers that have least; returns who gets which."""
        given = []
        while self._queue and self._may_begin():
            free = [worker for worker in sorted(self._ready) if len(self._held[worker]) < self._depth]
            if not free:
                break
            # In turn, so that a worker that is always first does not get everything.
            worker = min(free, key=lambda w: (len(self._held[w]), (w - self._next) % len(self._held)))
            self._next = worker + 1
            step = self._queue.popleft()
            self._begin(worker, step)
            given.append((worker, step))
        return given

    def _may_begin(self) -> bool:
        if self._max_staleness is None:
            return True
        return self.under_way <= self._max_staleness and all(n < self._max_staleness for n in self._crossed.values())

    def _begin(self, worker: int, step: Any) -> None:
        if self._max_staleness is not None:
            others = self.under_way
            for key in self._crossed:
                self._crossed[key] += 1
            self._crossed[id(step)] = others
        self._held[worker].append(step)

    def finished(self, worker: int, step: Any) -> None:
        """Notes that a worker is through with a step."""
        self._held[worker].remove(step)
        self._crossed.pop(id(step), None)

    def put_back(self, worker: int, step: Any) -> None:
        """Notes that a worker could not do a step, which goes back to the head of the queue."""
        self.finished(worker, step)
        self._queue.appendleft(step)

    def remove(self, step: Any) -> None:
        """Takes a step out of the queue."""
        self._queue.remove(step)

    def cancel_queued(self) -> list[Any]:
        """Empties the queue and returns what was in it."""
        cancelled, self._queue = list(self._queue), collections.deque()
        return cancelled
