"""Where the actor of a task goes: the keyword arguments for `ActorClass.options`."""

from __future__ import annotations

import abc
import math
from typing import Any

from replicax.cluster import Task
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


class ActorPlacement(abc.ABC):
    """Tells where actors go."""

    def options(self, job: str, index: int) -> dict[str, Any]:
        """Returns the arguments that place the actor of a task. It does not wait for logical CPUs."""
        where: dict[str, Any] = {"num_cpus": 0, **self._where(Task(job, index))}
        gpus = self._gpus(index) if job == WORKER else 0
        return {**where, "num_gpus": gpus} if gpus else where

    @abc.abstractmethod
    def _where(self, task: Task) -> dict[str, Any]: ...

    @abc.abstractmethod
    def _gpus(self, worker: int) -> float: ...


class OneNode(ActorPlacement):
    """All actors on the only node."""

    def __init__(self, counts: TaskCounts):
        self._workers = counts.workers

    def _where(self, task: Task) -> dict[str, Any]:
        return {}

    def _gpus(self, worker: int) -> float:
        return gpu_share(_nodes_resources().get("GPU", 0), self._workers)


class Spread(OneNode):
    """Over the nodes of a cluster that somebody else has started, evenly."""

    def _where(self, task: Task) -> dict[str, Any]:
        return {"scheduling_strategy": "SPREAD"}


class ByTask(ActorPlacement):
    """Each on the node that stands for its task; if that is not there, the actor waits for it."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # A worker that is away comes back with the GPUs that it had.

    def _where(self, task: Task) -> dict[str, Any]:
        return {"resources": {resource_name(task): _TRACE}}

    def _gpus(self, worker: int) -> float:
        name = resource_name(Task(WORKER, worker))
        for resources in alive_resources():
            if name in resources:
                self._known[worker] = int(resources.get("GPU", 0))
        return self._known.get(worker, 0)


def alive_resources() -> list[dict[str, float]]:
    """Returns for each node that is alive what it has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _nodes_resources() -> dict[str, float]:
    import ray

    return dict(ray.cluster_resources())
