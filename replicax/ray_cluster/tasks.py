"""A cluster of servers as TF_CONFIG describes it: its tasks, and which Ray node stands for which task.

There are two kinds. With parameter servers, these and the workers serve a coordinator, which may be the chief. Without,
all workers train in step for a client that the cluster does not name; the chief is one of them.
"""

from __future__ import annotations

from collections.abc import Collection

from replicax.checks import is_int
from replicax.cluster import ClusterConfig, ClusterResolver, ClusterSpec, Task, check_roles
from replicax.errors import ClusterError

SERVER, WORKER, COORDINATOR = "ps", "worker", "chief"
CLIENT = "client"
_ASYNCHRONOUS, _SYNCHRONOUS = (SERVER, WORKER), (COORDINATOR, WORKER)
_PREFIX = "replicax_"
#: The resource of each server of a cluster without parameter servers: one worker of an elastic job has room there.
ROOM = f"{_PREFIX}room"


def check_cluster(spec: ClusterSpec, field: str = "cluster") -> None:
    """Checks that a cluster has parameter servers and workers, and no unknown jobs."""
    if not spec:
        raise ClusterError(field, None, "is empty", "Give the addresses of the workers and of the parameter servers.")
    check_roles(spec, field)
    for job, name in ((SERVER, "parameter server"), (WORKER, "worker")):
        if job not in spec.jobs:
            raise ClusterError(field, spec.jobs, f"has no {name}", f"Add a job {job!r} with its addresses.")
        _check_numbers(spec, job, field)


def _check_numbers(spec: ClusterSpec, job: str, field: str) -> None:
    found = spec.task_indices(job) if job in spec.jobs else []
    if found != [*range(len(found))]:
        raise ClusterError(f"{field}.{job}", found, "must number its tasks from 0 without gaps", "Add them.")


def check_served(spec: ClusterSpec) -> None:
    """Checks that servers can be the tasks of a cluster: of parameter servers and workers, or of workers alone."""
    if SERVER in spec.jobs:
        check_cluster(spec)
    else:
        check_workers(spec)


def check_workers(spec: ClusterSpec, field: str = "cluster") -> None:
    """Checks that a cluster has workers that can train in step, and no parameter servers."""
    if not spec:
        raise ClusterError(field, None, "is empty", "Give the addresses of the workers.")
    check_roles(spec, field)
    if SERVER in spec.jobs:
        raise ClusterError(
            f"{field}.{SERVER}",
            spec.as_dict()[SERVER],
            "is not allowed in synchronous training, where all workers hold the variables",
            "Leave the job 'ps' out, or train with a parameter server strategy.",
        )
    if not serving_tasks(spec):
        raise ClusterError(field, spec.jobs, "has no worker", f"Add a job {WORKER!r} with its addresses.")
    _check_numbers(spec, WORKER, field)


def check_coordinator(job: str | None, index: int | None) -> None:
    """Checks that a task may be the coordinator: the chief, or one that the cluster does not name."""
    if job in _ASYNCHRONOUS:
        raise ClusterError(
            "task.type",
            job,
            "cannot coordinate: it serves the coordinator",
            "Run `rx.Server(cluster, job, index).join()` or `replicax server` there, and the script as 'chief'.",
        )
    if job not in (None, COORDINATOR):
        raise ClusterError("task.type", job, "has no part in this training", "The coordinator is the 'chief'.")
    if index is not None and (not is_int(index) or index > 0):
        raise ClusterError("task.index", index, "must be 0", "There is one coordinator.")


def check_server(spec: ClusterSpec, job: str, index: int) -> Task:
    """Returns the task of a server, after checking that it is one that serves."""
    if job not in serving_jobs(spec):
        why = "The coordinator needs no server: run the script." if SERVER in spec.jobs else "Run the script there."
        raise ClusterError("job", job, f"must be one of {[*serving_jobs(spec)]}", why)
    spec.task_address(job, index)
    return Task(job, index)


def serving_jobs(spec: ClusterSpec) -> tuple[str, ...]:
    """Returns the jobs whose tasks serve, the one with Ray's head first; all workers of a job without `ps` do."""
    jobs = _ASYNCHRONOUS if SERVER in spec.jobs else _SYNCHRONOUS
    return tuple(job for job in jobs if job in spec.jobs)


def serving_tasks(spec: ClusterSpec) -> list[Task]:
    """Returns the tasks that serve: parameter servers and workers, or the chief and workers."""
    return [Task(job, index) for job in serving_jobs(spec) for index in spec.task_indices(job)]


def head_task(spec: ClusterSpec) -> Task:
    """Returns the task where Ray's head runs, which must outlive those whom it serves: the first that serves."""
    return serving_tasks(spec)[0]


def head_address(spec: ClusterSpec) -> str:
    """Returns where Ray's head runs."""
    head = head_task(spec)
    return spec.task_address(head.type, head.index)


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
