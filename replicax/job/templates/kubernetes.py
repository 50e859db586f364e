"""An Indexed Job of Kubernetes, with its service and secret."""

from __future__ import annotations

from typing import Any

from replicax.checks.environment_names import TOKEN
from replicax.errors.exit_codes import ExitCode
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob, plain_size
from replicax.job.templates.manifests import manifests

_HEADER = """\
# kubectl apply -f this-file.yaml        (Kubernetes 1.29 or newer)
# kubectl logs -f -l job-name={name} --prefix
"""
#: A hint for the person who reads a manifest.
TO_ADD = """\
# The image must have {package} and your script in it. Checkpoints must outlive the pods: add a volume that all workers
# can write to, to `volumes` (a persistentVolumeClaim) and to the container's `volumeMounts`.
"""


def kubernetes(cluster: ClusterJob, token: str) -> str:
    """Returns the manifests of an Indexed Job, of the service that gives its pods names, and of their secret."""
    cluster.check_image()
    header = _HEADER.format(name=cluster.name) + TO_ADD.format(package="replicax")
    return manifests(header, _service(cluster), secret(cluster, token), indexed_job(cluster, cluster.name))


def _service(cluster: ClusterJob) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": cluster.name},
        "spec": {
            "clusterIP": "None",  # Only names: train-0.train, train-1.train, ...
            "publishNotReadyAddresses": True,  # The workers look for each other before they are ready.
            "selector": {"job-name": cluster.name},
            "ports": [{"name": "coordinator", "port": cluster.port}],
        },
    }


def secret(cluster: ClusterJob, token: str) -> dict[str, Any]:
    """Returns the manifest of the secret that the processes of a job have in common."""
    named = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{cluster.name}-token"}}
    return {**named, "stringData": {"token": token}}


def indexed_job(cluster: ClusterJob, pods: str) -> dict[str, Any]:
    """Returns the manifest of the Job, whose pods are called `pods` and their index."""
    container = {
        "name": "worker",
        "image": cluster.image,
        "command": ["/bin/sh", "-c"],
        "args": [_pod_script(cluster, pods)],
        "env": _variables(cluster),
        "ports": [{"containerPort": cluster.port}],
        "resources": resources(cluster),
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    pod = {
        "restartPolicy": "Never",
        "subdomain": cluster.name,
        "terminationGracePeriodSeconds": SECONDS_TO_SAVE,  # From SIGTERM to SIGKILL: time to save a checkpoint.
        "containers": [container],
        # NCCL and loaders with several processes share memory there; a pod has 64 MiB of it by default.
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{plain_size(cluster.shm)}i"}}],
    }
    rules = [
        # Options or programs are wrong: they would be wrong again.
        {"action": "FailJob", "onExitCodes": _exits(ExitCode.USAGE, ExitCode.DIVERGED)},
        # Another worker was gone, whose own end counts; or saved, to be resumed: no failure.
        {"action": "Ignore", "onExitCodes": _exits(ExitCode.PEER_LOST, ExitCode.RESUME)},
        # The node was drained, or the pod preempted.
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": cluster.name},
        "spec": {
            "completionMode": "Indexed",
            "completions": cluster.workers,
            "parallelism": cluster.workers,
            "backoffLimitPerIndex": cluster.restarts,  # Failures of one worker before the job fails.
            "maxFailedIndexes": 0,  # All workers are needed.
            "podReplacementPolicy": "Failed",  # Not two pods with the same index at the same time.
            "podFailurePolicy": {"rules": rules},
            "template": {"spec": pod},
        },
    }


def _exits(*codes: ExitCode) -> dict[str, Any]:
    return {"containerName": "worker", "operator": "In", "values": [int(code) for code in codes]}


def _pod_script(cluster: ClusterJob, pods: str) -> str:
    """Returns the script of a pod. JAX's processes meet at worker 0, the first in TF_CONFIG."""
    command = without_variables(cluster.command)
    hosts = ", ".join(f'"{pods}-{index}.{cluster.name}:{cluster.port}"' for index in range(cluster.workers))
    task = """{"type": "worker", "index": '"$JOB_COMPLETION_INDEX"'}"""
    return f"""\
set -eu
export TF_CONFIG='{{"cluster": {{"worker": [{hosts}]}}, "task": {task}}}'
export JAX_COORDINATOR_ADDRESS={pods}-0.{cluster.name}:{cluster.port}
export JAX_NUM_PROCESSES={cluster.workers} JAX_PROCESS_ID="$JOB_COMPLETION_INDEX"
exec {command}
"""


def without_variables(command: str) -> str:
    """Returns a command in which Kubernetes inserts none of its variables."""
    return command.replace("$(", "$$(")


def _variables(cluster: ClusterJob) -> list[dict[str, Any]]:
    plain = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1", **cluster.device_variables}
    reference = {"secretKeyRef": {"name": f"{cluster.name}-token", "key": "token"}}
    return [*as_list(plain), {"name": TOKEN, "valueFrom": reference}]


def as_list(variables: dict[str, str]) -> list[dict[str, Any]]:
    """Returns environment variables as a container has them."""
    return [{"name": name, "value": value} for name, value in variables.items()]


def resources(cluster: ClusterJob) -> dict[str, Any]:
    """Returns the resources that a worker's container asks for."""
    # No limit on CPU time: a throttled worker would delay all others.
    limits: dict[str, Any] = {"memory": f"{cluster.memory_size}i"}
    if cluster.gpus:
        limits["nvidia.com/gpu"] = cluster.gpus
    return {"requests": {"cpu": str(cluster.num_cpus), **limits}, "limits": {**limits}}
