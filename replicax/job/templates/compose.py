"""A file for Docker Compose: one container for each worker, on this machine."""

from __future__ import annotations

import json

from replicax.checks import environment_names
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob, plain_size
from replicax.job.templates.manifests import manifests

_HEADER = """\
# docker compose -f this-file.yaml up
# docker compose -f this-file.yaml down        (a container that is told to end may save first)
"""


def compose(cluster: ClusterJob, token: str) -> str:
    """Returns a file for `docker compose up`: a service for each worker, which find each other by their names."""
    cluster.check_image()
    services = {f"worker-{index}": _service(cluster, index, token) for index in range(cluster.workers)}
    return manifests(_HEADER, {"name": cluster.name, "services": services})


def _service(cluster: ClusterJob, index: int, token: str) -> dict[str, object]:
    hosts = [f"worker-{each}:{cluster.port}" for each in range(cluster.workers)]
    variables = {
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        "TF_CONFIG": json.dumps({"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}}),
        "JAX_COORDINATOR_ADDRESS": hosts[0],
        "JAX_NUM_PROCESSES": str(cluster.workers),
        "JAX_PROCESS_ID": str(index),
        environment_names.TOKEN: token,
        **cluster.device_variables,
    }
    command = ["python", cluster.script, *cluster.arguments]
    service: dict[str, object] = {
        "image": cluster.image,
        # Compose would insert a variable of its own after a single $.
        "command": [word.replace("$", "$$") for word in command],
        "environment": variables,
        "restart": f"on-failure:{cluster.restarts}" if cluster.restarts else "no",
        "stop_grace_period": f"{SECONDS_TO_SAVE}s",
        "shm_size": plain_size(cluster.shm).lower(),
        "mem_limit": cluster.memory_size.lower(),
    }
    if cluster.gpus:  # Each worker its own ones.
        own = [str(cluster.gpus * index + each) for each in range(cluster.gpus)]
        devices = [{"driver": "nvidia", "device_ids": own, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    return service
