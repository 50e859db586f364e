"""A parameter server cluster as TF_CONFIG describes it: its tasks, and which Ray node stands for which task."""

from __future__ import annotations

from collections.abc import Collection

from replicax.checks import is_int
from replicax.cluster import ClusterConfig, ClusterResolver, ClusterSpec, Task, check_roles
from replicax.errors import ClusterError

SERVER, WORKER, COORDINATOR = "ps", "worker", "chief"
SERVING = (SERVER, WORKER)
_PREFIX = "replicax_"


def check_cluster(spec: ClusterSpec, field: str = "cluster") -> None:
    """Checks that a cluster has parameter servers and workers, and no unknown jobs.

    Raises:
        ClusterError: One is missing or unknown.
    """
    if not spec:
        raise ClusterError(field, None, "is empty", "Give the addresses of the workers and of the parameter servers.")
    check_roles(spec, field)
    for job, name in ((SERVER, "parameter server"), (WORKER, "worker")):
        if job not in spec.jobs:
            raise ClusterError(field, spec.jobs, f"has no {name}", f"Add a job {job!r} with its addresses.")
        if spec.task_indices(job) != [*range(spec.num_tasks(job))]:
            raise ClusterError(
                f"{field}.{job}", spec.task_indices(job), "must number its tasks from 0 without gaps", "Add them."
            )


def check_coordinator(spec: ClusterSpec, job: str | None, index: int | None, field: str = "task") -> None:
    """Checks that a task may be the coordinator: the chief, or one that the cluster does not name.

    Raises:
        ClusterError: It may not.
    """
    if job in SERVING:
        raise ClusterError(
            f"{field}.type",
            job,
            "cannot coordinate: it serves the coordinator",
            "Run `rx.Server(cluster, job, index).join()` or `replicax server` there, and the script as 'chief'.",
        )
    if job not in (None, COORDINATOR):
        raise ClusterError(f"{field}.type", job, "has no part in this training", "The coordinator is the 'chief'.")
    if index is not None and (not is_int(index) or index > 0):
        raise ClusterError(f"{field}.index", index, "must be 0", "There is one coordinator.")


def check_server(spec: ClusterSpec, job: str, index: int) -> Task:
    """Returns the task that a server is to be.

    Raises:
        ClusterError: The cluster has no such task, or the task does not serve.
    """
    if job not in SERVING:
        raise ClusterError(
            "job", job, f"must be one of {[*SERVING]}", "The coordinator needs no server: run the script."
        )
    spec.task_address(job, index)
    return Task(job, index)


def serving_tasks(spec: ClusterSpec) -> list[Task]:
    """Returns the parameter servers and workers."""
    return [Task(job, index) for job in SERVING for index in spec.task_indices(job)]


def head_address(spec: ClusterSpec) -> str:
    """Returns where the first parameter server is: Ray's head runs there, and it must outlive the coordinators."""
    return spec.task_address(SERVER, 0)


def resource_name(task: Task) -> str:
    """Returns the resource that tells which task a Ray node is."""
    return f"{_PREFIX}{task.type}_{task.index}"


def describe(spec: ClusterSpec, task: Task) -> str:
    """Returns the name of a task in messages: `"ps:1 at host:port"`."""
    return f"{task} at {spec.task_address(task.type, task.index)}"


def missing_tasks(spec: ClusterSpec, resources: Collection[str]) -> list[Task]:
    """Returns the tasks whose resources no node has."""
    return [task for task in serving_tasks(spec) if resource_name(task) not in resources]


def own_task(config: ClusterConfig | ClusterResolver) -> tuple[ClusterSpec, str | None, int | None]:
    """Returns the cluster, and the job and index of this process where they are known."""
    if isinstance(config, ClusterResolver):
        return config.cluster_spec(), config.task_type, config.task_id
    task = config.task
    return config.spec, task.type if task else None, task.index if task else None
