"""Which part a process takes in an estimator's training. Decisions only: nothing here starts anything."""

from __future__ import annotations

from replicax.cluster import ClusterConfig, ClusterSpec
from replicax.errors import ClusterError

CHIEF, WORKER, SERVER, EVALUATOR, LOCAL = "chief", "worker", "ps", "evaluator", "local"


def check_cluster(cluster: ClusterConfig, remote_cluster: ClusterSpec | None = None) -> None:
    """Checks that servers have a chief, that there is one evaluator at most, and no remote cluster beside another."""
    jobs, task = cluster.spec.jobs, cluster.task
    if remote_cluster is not None and cluster.spec:
        raise ClusterError(
            "remote_cluster",
            remote_cluster.as_dict(),
            f"cannot be given in a process that {cluster.source or 'the environment'} places in a cluster itself, as "
            f"{task}",
            "Unset TF_CONFIG on the client, or leave `remote_cluster` out.",
        )
    if SERVER in jobs and CHIEF not in jobs:
        raise ClusterError(
            f"{cluster.source} cluster".strip(),
            jobs,
            "must have one 'chief' node: with parameter servers it schedules the steps and writes the checkpoints",
            'Add "chief": ["host:port"], the process that runs the script.',
        )
    if task is not None and task.type == EVALUATOR and task.index > 0:
        raise ClusterError(
            f"{cluster.source} task.index".strip(),
            task.index,
            "is of a second evaluator, and there can be one only: both would evaluate the same checkpoints",
            "Start one evaluator, with index 0.",
        )


def role_of(cluster: ClusterConfig) -> str:
    """Returns the part of this process: its job in a cluster, otherwise `"local"`, which trains and evaluates."""
    return LOCAL if cluster.task is None or not (cluster.spec or cluster.processes) else cluster.task.type


def global_id(cluster: ClusterConfig) -> int | None:
    """Returns the number of this process in the cluster: the chief, the workers, the servers; None for an evaluator."""
    role = role_of(cluster)
    if role == EVALUATOR:
        return None
    if role == SERVER:
        return num_workers(cluster) + (cluster.task.index if cluster.task else 0)
    return cluster.process_id


def num_workers(cluster: ClusterConfig) -> int:
    """Returns how many processes train, the chief among them; 0 in an evaluator, which has no part in it."""
    if role_of(cluster) == EVALUATOR:
        return 0
    listed = sum(cluster.spec.num_tasks(job) for job in (CHIEF, WORKER) if job in cluster.spec.jobs)
    return cluster.processes or listed or 1


def num_servers(cluster: ClusterConfig) -> int:
    """Returns how many parameter servers there are; 0 in an evaluator."""
    known = role_of(cluster) != EVALUATOR and SERVER in cluster.spec.jobs
    return cluster.spec.num_tasks(SERVER) if known else 0
