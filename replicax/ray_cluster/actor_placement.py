"""Decides where the actor of a task runs: the keyword arguments for `ActorClass.options`."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

from replicax.cluster import Task
from replicax.errors import ClusterError
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import PATIENCE
from replicax.ray_cluster.task_counts import TaskCounts
from replicax.ray_cluster.tasks import WORKER, resource_name

# So little that a new actor of a task need not wait for the end of the old one.
_TRACE = 0.001


def gpu_share(gpus: float, workers: int) -> float:
    """Returns how much each worker gets of the GPUs: the same number of whole ones, or an equal part of one.

    >>> gpu_share(8, 4), gpu_share(2, 3), gpu_share(0, 2)
    (2, 0.5, 0)
    """
    whole = int(gpus)
    if whole >= workers:
        return whole // workers
    return 1 / math.ceil(workers / whole) if whole else 0


class ActorOptions(TypedDict, total=False):
    """Keyword arguments for `ActorClass.options` that place an actor."""

    num_cpus: float
    enable_task_events: bool
    num_gpus: float
    resources: dict[str, float]
    scheduling_strategy: str


class ActorPlacement(abc.ABC):
    """Decides which node an actor runs on, and which GPUs it gets."""

    def options(self, job: str, index: int) -> ActorOptions:
        """Returns the arguments that place the actor of a task. It does not wait for logical CPUs."""
        # Without events: Ray's head would keep those of the last 100,000 calls, 0.6 GB.
        options: ActorOptions = {"num_cpus": 0, "enable_task_events": False, **self._node(Task(job, index))}
        gpus = self._gpus(index) if job == WORKER else 0
        if gpus:
            options["num_gpus"] = gpus
        return options

    @abc.abstractmethod
    def _node(self, task: Task) -> ActorOptions: ...

    @abc.abstractmethod
    def _gpus(self, worker: int) -> float: ...


class OneNode(ActorPlacement):
    """Places all actors on the only node."""

    def __init__(self, counts: TaskCounts):
        self._workers = counts.workers

    def _node(self, task: Task) -> ActorOptions:
        return {}

    def _gpus(self, worker: int) -> float:
        return gpu_share(gpus_of(alive_resources()), self._workers)


class Spread(OneNode):
    """Spreads actors evenly over the nodes of a cluster that was there already."""

    def _node(self, task: Task) -> ActorOptions:
        return {"scheduling_strategy": "SPREAD"}


class ByTask(ActorPlacement):
    """Places each actor on the node that stands for its task; if that node is missing, the actor waits for it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # A worker that is away comes back with the GPUs that it had.

    def _node(self, task: Task) -> ActorOptions:
        return {"resources": {resource_name(task): _TRACE}}

    def _gpus(self, worker: int) -> float:
        name = resource_name(Task(WORKER, worker))
        for resources in alive_resources():
            if name in resources:
                self._known[worker] = int(resources.get("GPU", 0))
        return self._known.get(worker, 0)


def alive_resources(seconds: float = PATIENCE.start) -> list[dict[str, float]]:
    """Returns the resources of each node that is alive; raises where Ray does not tell it within so many seconds."""
    import ray

    nodes: list[dict[str, Any]] = []
    # Where its head is gone, Ray waits for another one, some minutes.
    if not done_within(seconds, lambda: nodes.extend(ray.nodes())):
        raise ClusterError(
            "The head of the Ray cluster",
            None,
            f"has not answered within {seconds:.0f} s",
            "Is it still there? If it has ended, start the cluster and the job again.",
        )
    return [node["Resources"] for node in nodes if node["Alive"]]


def gpus_of(nodes: Iterable[Mapping[str, float]]) -> float:
    """Returns how many GPUs there are among the resources of nodes."""
    return sum(node.get("GPU", 0) for node in nodes)
