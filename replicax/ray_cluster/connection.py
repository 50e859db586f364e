"""Connects with the Ray cluster that the arguments or the environment name; actors are started there."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator

from replicax.checks.environment_names import PS_SERVERS, PS_WORKERS
from replicax.cluster import ClusterConfig, ClusterResolver, find_cluster
from replicax.cluster.environment import text
from replicax.cluster.patience import Patience
from replicax.errors import ClusterError
from replicax.ray_cluster.actor_placement import ActorOptions, ActorPlacement, ByTask, OneNode, Spread
from replicax.ray_cluster.attaching import attach, attach_to_tasks, embed
from replicax.ray_cluster.deadline import PATIENCE, Deadline
from replicax.ray_cluster.ending_actors import end_process
from replicax.ray_cluster.head import Head, head_of_connection, limit
from replicax.ray_cluster.nodes import HEAD_LIMIT
from replicax.ray_cluster.task_counts import TaskCounts, given_counts, told_counts
from replicax.ray_cluster.tasks import SERVER, WORKER, check_cluster, check_coordinator, own_task
from replicax.runtime.ending import keep_exit_codes, only_here, pass_by_garbage

_WAYS = (
    "Run the script with `replicax run --ps 1 --workers 2`, pass the numbers of workers and servers, set TF_CONFIG or "
    "pass a cluster resolver with jobs 'worker' and 'ps', or give the address of a Ray cluster."
)
_NUMBERS = f"Pass `workers` and `servers`, or set {PS_WORKERS} and {PS_SERVERS}."


class RayCluster:
    """A Ray cluster that this process is connected with, for the tasks of a parameter server strategy."""

    def __init__(
        self,
        counts: TaskCounts,
        placement: ActorPlacement,
        is_local: bool = False,
        ending: contextlib.ExitStack | None = None,
        resolver: ClusterResolver | None = None,
        head: Head | None = None,
    ):
        self.workers, self.servers = counts
        # No resolver if counts named the tasks; no head if this process is a client of another driver.
        self.resolver, self.head = resolver, head
        keep_exit_codes()
        pass_by_garbage()
        self.is_local = is_local  # All of it is on this machine and ends with this process.
        self._placement = placement
        self._ending = ending or contextlib.ExitStack()
        self._at_exit = only_here(self.close)
        atexit.register(self._at_exit)

    def actor_options(self, job: str, index: int) -> ActorOptions:
        """Returns the keyword arguments for `ActorClass.options` that place the actor of a task."""
        tasks = {WORKER: self.workers, SERVER: self.servers}
        if job not in tasks:
            raise ClusterError("job", job, f"must be one of {[*tasks]}", "Name a job that has actors.")
        if not 0 <= index < tasks[job]:
            raise ClusterError("index", index, f"must be less than {tasks[job]}", f"Name one of the {job} tasks.")
        return self._placement.options(job, index)

    def end_process(self, node_id: str, pid: int) -> None:
        """Kills the process of one of our actors, even if it is stopped. Nothing happens if it has ended already."""
        end_process(node_id, pid)

    def close(self) -> None:
        """Ends what `connect` has started: the connection, and a cluster of this process's own."""
        atexit.unregister(self._at_exit)
        self._ending.close()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_shared: list[RayCluster] = []


@contextlib.contextmanager
def shared(cluster: RayCluster) -> Iterator[RayCluster]:
    """Makes `connect` use this cluster while the block runs, if no other one is asked for."""
    _shared.append(cluster)
    try:
        yield cluster
    finally:
        _shared.remove(cluster)


def connect(
    resolver: ClusterResolver | ClusterConfig | None = None,
    *,
    workers: int | None = None,
    servers: int | None = None,
    address: str | None = None,
    patience: Patience = PATIENCE,
    dashboard: bool = True,
) -> RayCluster:
    """Connects this process, as the coordinator, with the cluster in which servers and workers run.

    The first of these that is there determines it: `resolver`, `address`, a cluster that `rx.testing.local_cluster` has
    made, the counts (here or in the environment), `TF_CONFIG`. Counts mean a cluster within this process or, if they
    are arguments, that of `RAY_ADDRESS`. A connection that the user has made by `ray.init` is used, and stays open.
    Call it in a thread that lives as long as the cluster, such as the main thread: Ray's processes end with it.
    """
    deadline = Deadline(patience.start)
    counts = given_counts(workers, servers)
    if resolver is not None:
        if counts or address:
            raise ClusterError("resolver", None, "tells all of it", "Leave workers, servers and address out.")
        return _by_tasks(resolver, deadline)
    if address is None and _shared:
        shared = _shared[-1]
        counts = counts or TaskCounts(shared.workers, shared.servers)
        return RayCluster(counts, shared._placement, True, head=shared.head)
    if address is None and counts:
        address = text(os.environ, "RAY_ADDRESS")
    counts = counts or told_counts(os.environ)
    if counts is None and address is None:
        found = find_cluster()
        if SERVER in found.config.spec.jobs:
            return _by_tasks(found.resolver, deadline)
    if counts is None:
        problem = "was not found" if address is None else "does not tell how many workers to use"
        raise ClusterError("The cluster", address, problem, _WAYS if address is None else _NUMBERS)
    return _by_counts(counts, address, dashboard, patience)


def _by_counts(counts: TaskCounts, address: str | None, dashboard: bool, patience: Patience) -> RayCluster:
    if _is_connected():
        return RayCluster(counts, Spread(counts), head=head_of_connection(limit()))
    if address is not None:
        ending = attach(address, Deadline(patience.start))
        return RayCluster(counts, Spread(counts), ending=ending, head=head_of_connection(limit()))
    ending = embed(dashboard, patience)
    head = head_of_connection(limit(default=HEAD_LIMIT))
    return RayCluster(counts, OneNode(counts), is_local=True, ending=ending, head=head)


def _by_tasks(config: ClusterResolver | ClusterConfig, deadline: Deadline) -> RayCluster:
    spec, job, index = own_task(config)
    check_cluster(spec)
    check_coordinator(job, index)
    ending = attach_to_tasks(spec, deadline, connected=_is_connected())
    resolver = config if isinstance(config, ClusterResolver) else None
    counts = TaskCounts(spec.num_tasks(WORKER), spec.num_tasks(SERVER))
    head = head_of_connection(limit(default=HEAD_LIMIT))
    return RayCluster(counts, ByTask(), ending=ending, resolver=resolver, head=head)


def _is_connected() -> bool:
    """Whether the user has called `ray.init`."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())
