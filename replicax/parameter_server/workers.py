"""The coordinator's view of the workers: their actors, and what these have been told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from replicax.errors import ClusterTimeoutError
from replicax.parameter_server.cluster import Cluster
from replicax.parameter_server.messages import SetUp, Step
from replicax.parameter_server.server import settings_for
from replicax.parameter_server.worker import Worker

_SECONDS_BETWEEN_STARTS = 2.0
_CALLS_AT_ONCE = 8  # two steps, and what comes between: setting up, and looking at batches


class Workers:
    """The workers' actors.

    Args:
        cluster: Where they live.
        servers: Handles of the servers' actors.
        start_timeout: How long to wait for the first worker, in seconds.

    Attributes:
        platforms: The kinds of devices that workers compute on.
        told_of_servers: How many things steps must wait for, so that they go to the servers that there are.
    """

    def __init__(self, cluster: Cluster, servers: Sequence[Any], start_timeout: float):
        self._cluster, self._servers, self._start_timeout = cluster, list(servers), start_timeout
        self._ready: Callable[[int], None] = lambda worker: None
        self.platforms: set[str] = set()
        self._handles: dict[int, Any] = {}
        self._identities: dict[int, tuple[str, int]] = {}
        self._tasks: list[SetUp] = []
        self._lock = threading.RLock()  # the garbage collector may call `forget` at any time
        self._up: set[int] = set()
        self.told_of_servers = 0
        self._someone_is_up = threading.Event()
        self._closed = False

    def start_all(self, ready: Callable[[int], None]) -> None:
        """Starts all workers.

        Args:
            ready: Called, in some thread, when a worker has come up, also when it has been replaced.
        """
        self._ready = ready
        for worker in range(len(self)):
            self.start(worker)

    def __len__(self) -> int:
        return self._cluster.workers

    def start(self, worker: int) -> None:
        """Starts (or replaces) a worker; it does again whatever workers have been told to do."""
        import ray

        options = self._cluster.actor_options("worker", worker)
        with self._lock:
            self._up.discard(worker)
            actor: Any = ray.remote(Worker).options(max_concurrency=_CALLS_AT_ONCE, **options)
            handle = self._handles[worker] = actor.remote(worker, self._servers, settings_for(self._cluster))
            for number, task in enumerate(self._tasks):
                handle.set_up.remote(number, task)
        handle.identity.remote().future().add_done_callback(lambda future: self._came(worker, handle, future))

    def _came(self, worker: int, handle: Any, future: Any) -> None:
        if future.exception() is not None:
            if self._handles.get(worker) is handle and not self._closed:
                # Its node may be gone for now: Ray refuses at once what it cannot place.
                later = threading.Timer(_SECONDS_BETWEEN_STARTS, self.start, [worker])
                later.daemon = True
                later.start()
            return
        node, pid, platform = future.result()
        self._identities[worker] = node, pid
        self.platforms.add(platform)
        self._up.add(worker)
        self._someone_is_up.set()
        self._ready(worker)

    def use_servers(self, servers: Sequence[Any]) -> None:
        """Lets workers use these servers from now on."""
        with self._lock:
            self._servers = list(servers)
        self.told_of_servers = self.tell(SetUp("servers", (self._servers,)))

    def forget(self, provided: Hashable) -> None:
        """Lets workers drop a dataset, iterator, resource or program that nobody refers to any more."""
        if self._closed:
            return
        with self._lock:
            # A worker that is started later need not make it, but counts it.
            self._tasks = [task if task.provides != provided else SetUp("drop", ()) for task in self._tasks]
        self.tell(SetUp("drop", (provided,)))

    def structure(self, kind: str, number: int, worker: int | None = None) -> Any:
        """Asks a worker (any by default) for the structure of the next batch of an iterator, or of a resource."""
        return self._ask("structure", worker, kind, number)

    def resources(self, number: int) -> list[Any]:
        """Returns the arrays of a resource of each worker."""
        return [self._ask("resource", worker, number) for worker in range(len(self))]

    def _ask(self, method: str, worker: int | None, *args: Any) -> Any:
        import ray

        while True:
            if not self._someone_is_up.wait(self._start_timeout):
                names = [f"worker:{number}" for number in range(len(self))]
                raise ClusterTimeoutError("the coordinator", self._start_timeout, names, "the Ray cluster")
            asked = worker if worker is not None else min(self._up, default=0)
            try:
                return ray.get(getattr(self._handles[asked], method).remote(*args, self.told))
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayActorError:
                self.start(asked)

    def tell(self, task: SetUp) -> int:
        """Lets all workers, also later ones, do something before later steps; returns how many things there are."""
        import ray

        shared = ray.put(task)
        with self._lock:
            self._tasks.append(task)
            number = len(self._tasks) - 1
            for handle in self._handles.values():
                handle.set_up.remote(number, shared)
        return number + 1

    @property
    def told(self) -> int:
        """How many things workers have been told to do."""
        return len(self._tasks)

    def run(self, worker: int, step: Step) -> Any:
        """Sends a step to a worker; returns the reference to what it will answer."""
        return self._handles[worker].run.remote(step)

    def end(self, worker: int) -> None:
        """Kills a worker's process, also a stopped one."""
        if worker in self._identities:
            self._cluster.end_process(*self._identities[worker])

    def pids(self) -> dict[int, int]:
        """Returns the process ids of the workers that are up."""
        return {worker: self._identities[worker][1] for worker in list(self._up)}

    def close(self) -> None:
        """Ends all workers."""
        import ray

        self._closed = True
        for handle in self._handles.values():
            ray.kill(handle)
