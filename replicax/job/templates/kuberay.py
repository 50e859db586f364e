"""A RayJob of KubeRay: a Ray cluster on Kubernetes on which `replicax run --on auto` starts the workers."""

from __future__ import annotations

import shlex
from typing import Any

from replicax.checks.environment_names import JOB
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob
from replicax.job.templates.kubernetes import TO_ADD, as_list, resources, without_variables
from replicax.job.templates.manifests import manifests

_HEADER = """\
# kubectl apply -f this-file.yaml        (the KubeRay operator 1.5.1 or newer, and Ray 2.52 or newer in the image)
# kubectl logs -f -l job-name={name}
"""
# KubeRay pastes the entrypoint into a shell script, and Ray quotes it a second time, for Windows. This one has nothing
# that either could change; the command itself travels in a variable.
_ENTRYPOINT = f"sh -c 'printenv {JOB} > /tmp/replicax-job.sh && exec sh /tmp/replicax-job.sh'"
_HEAD = {"requests": {"cpu": "2", "memory": "8Gi"}, "limits": {"memory": "8Gi"}}


def kuberay(cluster: ClusterJob) -> str:
    """Returns the manifest of a RayJob: one worker of the job on each pod of Ray's, and a head without workers."""
    cluster.check_image("replicax[ray]")
    head = {
        "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},  # No workers there.
        "template": {"spec": _pod("ray-head", cluster, _HEAD, {JOB: _command(cluster)})},
    }
    workers = {
        "groupName": "workers",
        "replicas": cluster.workers,
        "minReplicas": cluster.workers,
        "maxReplicas": cluster.workers,
        "rayStartParams": {"num-cpus": str(cluster.num_cpus), "num-gpus": str(cluster.gpus)},
        # The seconds from SIGTERM to SIGKILL: time to save a checkpoint.
        "template": {
            "spec": {
                "terminationGracePeriodSeconds": SECONDS_TO_SAVE,
                **_pod("ray-worker", cluster, resources(cluster), {}),
            }
        },
    }
    job = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": cluster.name},
        "spec": {
            "entrypoint": _ENTRYPOINT,
            "backoffLimit": 0,  # `replicax run` starts the workers again. With 1, a lost head is made anew once.
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": {
                "authOptions": {"mode": "token"},  # Whoever reaches Ray's ports could otherwise run code there.
                "headGroupSpec": head,
                "workerGroupSpecs": [workers],
            },
        },
    }
    return manifests(_HEADER.format(name=cluster.name) + TO_ADD.format(package="replicax[ray]"), job)


def _pod(name: str, cluster: ClusterJob, needs: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
    """Returns what the pods of the head and of the workers have in common. KubeRay adds ports and /dev/shm itself."""
    environment = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1", **variables}
    container = {"name": name, "image": cluster.image, "resources": needs, "env": as_list(environment)}
    return {"containers": [container]}


def _command(cluster: ClusterJob) -> str:
    """Returns the command of the job, for a shell, as the value of a container's variable."""
    options = ["--on", "auto", "--workers", str(cluster.workers), "--restarts", str(cluster.restarts)]
    devices = [] if cluster.gpus else ["--devices-per-worker", str(cluster.devices)]
    command = shlex.join(["replicax", "run", *options, *devices, cluster.script, *cluster.arguments])
    return without_variables(f"exec {command}")
