"""Figures of a training so far: steps, times, staleness, bytes, restarts."""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from replicax.parameter_server.actors.messages import Done


@dataclasses.dataclass(frozen=True)
class WorkerStats:
    """Figures of one worker."""

    steps: int
    steps_per_second: float  # over the last few seconds
    seconds: dict[str, float]  # of "input", "pull", "compute" and "push"
    restarts: int


@dataclasses.dataclass(frozen=True)
class Queue:
    """How many scheduled functions wait and are under way, and how many workers can take some."""

    waiting: int
    under_way: int
    ready_workers: int

    def __str__(self) -> str:
        return f"{self.waiting} waiting, {self.under_way} under way, {self.ready_workers} workers ready"


@dataclasses.dataclass(frozen=True)
class Stats:
    """Figures of a training so far.

    Attributes:
        steps: Steps that are through.
        seconds: Time since the first one, in seconds.
        queue: What was scheduled and is not through.
        workers: For each worker what it has done.
        staleness: How many updates were applied to variables that had been updated so many times since they were read.
        bytes_pulled: Bytes of variables that went to workers.
        bytes_pushed: Bytes that workers have sent to servers.
        server_restarts: How often a server was replaced.

    Example:
        >>> def mean_staleness(stats: rx.coordinator.Stats) -> str:  # of ClusterCoordinator(strategy).stats()
        ...     return f"{stats.mean_staleness:.1f} after {stats.steps} steps"
        >>> queue = Queue(waiting=0, under_way=0, ready_workers=2)
        >>> mean_staleness(Stats(4, 2.0, queue, (), {0: 1, 2: 1}, 0, 0, 0))
        '1.0 after 4 steps'
    """

    steps: int
    seconds: float
    queue: Queue
    workers: tuple[WorkerStats, ...]
    staleness: dict[int, int]
    bytes_pulled: int
    bytes_pushed: int
    server_restarts: int

    @property
    def steps_per_second(self) -> float:
        """Of all workers together, over the last few seconds."""
        return sum(worker.steps_per_second for worker in self.workers)

    @property
    def mean_staleness(self) -> float:
        """By how many updates variables were behind, in the mean."""
        updates = sum(self.staleness.values())
        return sum(behind * count for behind, count in self.staleness.items()) / updates if updates else 0.0

    def scalars(self) -> dict[str, float]:
        """Returns the figures by name, as TensorBoard has them."""
        found = {
            "steps": self.steps,
            "steps_per_second": self.steps_per_second,
            "queue": self.queue.waiting,
            "staleness_mean": self.mean_staleness,
            "staleness_max": max(self.staleness, default=0),
            "bytes_pulled": self.bytes_pulled,
            "bytes_pushed": self.bytes_pushed,
            "worker_restarts": sum(worker.restarts for worker in self.workers),
            "server_restarts": self.server_restarts,
        }
        found |= {f"steps_per_second/worker_{i}": worker.steps_per_second for i, worker in enumerate(self.workers)}
        return {name: float(value) for name, value in found.items()}


_RECENT_S = 10.0  # of steps, for the rate that is shown


class StatsRecorder:
    """Collects the figures."""

    def __init__(self, workers: int, servers: int, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self.versions = [0] * servers  # the newest of each server that a worker has seen
        self.restarts = [0] * workers
        self.server_restarts = 0
        self._seconds: list[dict[str, float]] = [{} for _ in range(workers)]
        self._steps = [0] * workers
        self._recent: list[collections.deque[float]] = [collections.deque() for _ in range(workers)]
        self._staleness: collections.Counter[int] = collections.Counter()
        self._bytes_pulled = self._bytes_pushed = 0
        self._first: float | None = None
        self._last = 0.0
        self._lock = threading.Lock()

    def note(self, worker: int, done: Done) -> None:
        """Counts a step."""
        with self._lock:
            self._last = now = self._clock()
            if self._first is None:
                self._first = now - sum(done.seconds.values())  # Rates count the time of the first step too.
            self._steps[worker] += 1
            self._recent[worker].append(now)
            for what, seconds in done.seconds.items():
                self._seconds[worker][what] = self._seconds[worker].get(what, 0.0) + seconds
            for server, version in done.versions.items():
                self.versions[server] = max(self.versions[server], version)
            if done.behind:
                self._staleness[max(done.behind.values())] += 1
            self._bytes_pulled += done.bytes_pulled
            self._bytes_pushed += done.bytes_pushed

    def servers_replaced(self, servers: Sequence[int]) -> None:
        """Notes that servers began anew, with version 0."""
        with self._lock:
            self.server_restarts += len(servers)
            for server in servers:
                self.versions[server] = 0

    def snapshot(self, queue: Queue) -> Stats:
        """Returns the figures of this moment."""
        with self._lock:
            return Stats(
                steps=sum(self._steps),
                seconds=0.0 if self._first is None else self._last - self._first,
                queue=queue,
                workers=tuple(self._worker(i) for i in range(len(self._steps))),
                staleness=dict(sorted(self._staleness.items())),
                bytes_pulled=self._bytes_pulled,
                bytes_pushed=self._bytes_pushed,
                server_restarts=self.server_restarts,
            )

    def _worker(self, worker: int) -> WorkerStats:
        recent, now = self._recent[worker], self._clock()
        while recent and recent[0] < now - _RECENT_S:
            recent.popleft()
        span = min(_RECENT_S, now - self._first) if self._first is not None else 0.0
        rate = len(recent) / span if span > 0 else 0.0
        return WorkerStats(self._steps[worker], rate, dict(self._seconds[worker]), self.restarts[worker])
