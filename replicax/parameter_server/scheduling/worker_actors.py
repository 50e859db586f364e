"""The coordinator's view of the workers: their actors, and what these have been told."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np

from replicax.cluster.patience import Patience
from replicax.errors import ClusterTimeoutError, WorkerLostError
from replicax.parameter_server.actors.actor_errors import Raised, closed, is_actor_lost, own_error
from replicax.parameter_server.actors.messages import Report, SetUp, StepCall
from replicax.parameter_server.actors.parameter_server import settings_for
from replicax.parameter_server.actors.worker import CALLS_AT_ONCE, SET_UP, THREADS, WATCH, RemoteWorker
from replicax.parameter_server.scheduling.handles import (
    RemoteAnswer,
    RemoteStructure,
    ServerHandle,
    WorkerAnswer,
    WorkerHandle,
    ray_handle,
)
from replicax.parameter_server.scheduling.watch import longest_wait
from replicax.ray_cluster import RayCluster
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.ending_actors import end_actor

_SENT_WITH_THE_CALL = ("drop", "servers")  # Other kinds may be large, and are stored once for all workers.
_MOST_ASKED = 10  # Some of these may be lost, and others may hang.
_SECONDS_BETWEEN_LOOKS = 0.005  # at answers
T = TypeVar("T")


class _NoAnswerError(WorkerLostError):
    """A worker did not answer a question, since it is lost or hangs."""


class WorkerActors:
    """The workers' actors, and what they have been set up with."""

    def __init__(self, cluster: RayCluster, servers: Sequence[ServerHandle], patience: Patience):
        self._cluster, self._servers, self._era = cluster, list(servers), 0
        self._patience = patience
        self.platforms: set[str] = set()  # of the devices that workers compute on
        self._handles: dict[int, WorkerHandle] = {}
        self._lives: dict[int, int] = {}
        self._reports: dict[int, Report] = {}
        self._tasks: list[SetUp] = []
        self._lock = threading.RLock()
        self.set_ups_for_servers = 0  # that a worker must have done before it knows the present servers
        self._closed = self._ended = False
        self._starts_under_way = 0

    def __len__(self) -> int:
        return self._cluster.workers

    def start(self, worker: int, life: int) -> int:
        """Starts (or replaces) a worker, and sends it all set-ups; returns how many there are."""
        with self._lock:
            if self._closed:
                return 0
            servers, era = self._servers, self._era
            self._starts_under_way += 1
        try:
            # Without the lock: while Ray's head is out of reach this does not return.
            handle = self._create(worker, servers, era)
            with self._lock:
                is_late = self._closed or self._lives.get(worker, 0) > life
                over = handle if is_late else self._handles.get(worker)
                told = 0 if is_late else self._send_set_ups(worker, life, handle)
            if over is not None:
                # It may be alive: the network may be the reason why nothing was heard of it.
                end_actor(ray_handle(over), self._patience)
        finally:
            with self._lock:
                self._starts_under_way -= 1
        return told

    def _create(self, worker: int, servers: Sequence[ServerHandle], era: int) -> WorkerHandle:
        import ray

        options = self._cluster.actor_options("worker", worker)
        actor = ray.remote(concurrency_groups=THREADS)(RemoteWorker)  # type: ignore[call-overload]
        actor = actor.options(max_concurrency=CALLS_AT_ONCE, **options)
        handle: WorkerHandle = actor.remote(worker, servers, settings_for(self._cluster), era)
        return handle

    def _send_set_ups(self, worker: int, life: int, handle: WorkerHandle) -> int:
        """Sends a new worker all set-ups, those with newer servers among them; returns how many there are."""
        self._handles[worker], self._lives[worker] = handle, life
        self._reports.pop(worker, None)
        for index, task in enumerate(self._tasks):
            _set_up(handle, index, task)
        return len(self._tasks)

    def ping(self, worker: int, life: int) -> Future[Report] | None:
        """Asks a worker for its report; returns None if this life of it is over."""
        with self._lock:
            if self._closed or self._lives.get(worker) != life:
                return None
            handle = self._handles[worker]
        return handle.report.options(concurrency_group=WATCH).remote().future()

    def note_report(self, worker: int, report: Report) -> None:
        self.platforms.add(report.platform)
        self._reports[worker] = report

    def use_servers(self, servers: Sequence[ServerHandle], era: int) -> None:
        """Lets workers use these servers from now on."""
        with self._lock:
            self._servers, self._era = list(servers), era
            self._tasks = [task if task.kind != "servers" else SetUp("drop", ()) for task in self._tasks]
            self.set_ups_for_servers = self.add_set_up(SetUp("servers", (self._servers, era)))

    def forget(self, provided: Hashable) -> None:
        """Lets workers drop a dataset, iterator, resource or program that nobody refers to any more."""
        with self._lock:
            if self._closed:
                return
            # A worker that is started later need not make it, but counts it.
            self._tasks = [task if task.provides != provided else SetUp("drop", ()) for task in self._tasks]
        self.add_set_up(SetUp("drop", (provided,)))

    def structure(self, kind: str, id: int, worker: int | None = None) -> RemoteStructure:
        """Asks a worker (any by default) for the structure of the next batch of an iterator, or of a resource."""

        def call(handle: WorkerHandle) -> RemoteAnswer[RemoteStructure | Raised]:
            return handle.structure.remote(kind, id, self.set_ups)

        if worker is not None:
            return self._ask(worker, "structure", call)
        return self._ask_any(range(len(self)), "structure", call)

    def resources(self, id: int) -> list[list[np.ndarray]]:
        def call(handle: WorkerHandle) -> RemoteAnswer[list[np.ndarray] | Raised]:
            return handle.resource.remote(id, self.set_ups)

        return [self._ask_any([worker], "resource", call) for worker in range(len(self))]

    def _ask_any(
        self, workers: Sequence[int], what: str, call: Callable[[WorkerHandle], RemoteAnswer[T | Raised]]
    ) -> T:
        for _ in range(_MOST_ASKED - 1):
            with contextlib.suppress(_NoAnswerError):
                return self._ask(self._any_ready(workers), what, call)
        return self._ask(self._any_ready(workers), what, call)

    def _ask(self, worker: int, what: str, call: Callable[[WorkerHandle], RemoteAnswer[T | Raised]]) -> T:
        with self._lock:
            if self._closed:
                raise closed()
            handle, life = self._handles[worker], self._lives[worker]
        future = call(handle).future()
        longest = 2 * self._patience.stall  # to be set up, and to answer
        if not _wait_for(future.done, longest):
            self.end(worker, life)
            raise _NoAnswerError(
                f"worker:{worker} was asked for its {what}, and has not answered for {longest:g} s. Its dataset may "
                "hang; if it is only slow, give the strategy a longer `stall_timeout`."
            )
        error = future.exception()
        if error is None:
            answer = future.result()
            if isinstance(answer, Raised):
                raise answer.error()
            return answer
        if not is_actor_lost(error):
            raise own_error(error)
        with self._lock:
            if self._lives[worker] == life:
                self._reports.pop(worker, None)
        raise _NoAnswerError(f"worker:{worker} was asked for its {what}, and has gone. {error}")

    def _any_ready(self, workers: Sequence[int]) -> int:
        """Returns one of these workers that is up, as soon as one is."""
        longest = longest_wait(self._patience)
        if not _wait_for(lambda: self._closed or any(worker in self._reports for worker in workers), longest):
            names = [f"worker:{worker}" for worker in workers]
            raise ClusterTimeoutError("the coordinator", longest, names, "the Ray cluster")
        if self._closed:
            raise closed()
        set_up = {worker: report.set_up for worker, report in list(self._reports.items()) if worker in workers}
        return min(set_up, key=lambda worker: (-set_up[worker], worker), default=workers[0])

    def add_set_up(self, task: SetUp) -> int:
        """Lets all workers, also later ones, do something before later steps; returns how many set-ups there are."""
        import ray

        if self._closed:
            raise closed()
        shared = task if task.kind in _SENT_WITH_THE_CALL else ray.put(task)
        with self._lock:
            index = len(self._tasks)
            self._tasks.append(task)
            for handle in self._handles.values():
                _set_up(handle, index, shared)
        return index + 1

    @property
    def set_ups(self) -> int:
        """Number of set-ups so far."""
        return len(self._tasks)

    def run(self, worker: int, step: StepCall) -> Future[WorkerAnswer]:
        """Sends a step to a worker; returns a future of its answer."""
        return self._handles[worker].run.remote(step).future()

    def end(self, worker: int, life: int) -> None:
        """Kills a worker's process, also a stopped one, as far as Ray can be reached."""
        with self._lock:
            if self._closed or self._lives.get(worker) != life:
                return
            handle, report = self._handles.get(worker), self._reports.pop(worker, None)
        if handle is not None and end_actor(ray_handle(handle), self._patience) and report is not None:
            self._cluster.end_process(report.node, report.pid)

    def pids(self) -> dict[int, int]:
        """Returns the process ids of the workers that are up."""
        return {worker: report.pid for worker, report in list(self._reports.items())}

    def close(self) -> None:
        """Ends all workers; a second time it does nothing, as Ray may have ended too."""
        import ray

        if self._ended:
            return
        with self._lock:
            self._closed = True
        # Ray must be there as long as they go on.
        _wait_for(lambda: not self._starts_under_way, self._patience.silence)
        with self._lock:
            handles = list(self._handles.values())
        done_within(self._patience.silence, lambda: [ray.kill(ray_handle(handle)) for handle in handles])
        self._ended = True


def _set_up(handle: WorkerHandle, index: int, task: object) -> None:
    handle.set_up.options(concurrency_group=SET_UP).remote(index, task)


def _wait_for(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True
