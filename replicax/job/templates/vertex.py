"""A custom job of Vertex AI."""

from __future__ import annotations

from replicax.checks import environment_names
from replicax.errors import LaunchError
from replicax.job.templates.cluster_job import ClusterJob
from replicax.job.templates.manifests import manifests

_HEADER = """\
# gcloud ai custom-jobs create --region=REGION --display-name={name} --config=this-file.yaml
# Vertex AI tells each worker its place in TF_CONFIG: the first pool is the chief, the second one the other workers.
"""


def vertex(cluster: ClusterJob, token: str, machine: str, accelerator: str | None = None) -> str:
    """Returns the specification of a custom job: a pool with the chief, and one with all other workers."""
    cluster.check_image()
    if not machine:
        raise LaunchError("--machine must name a type of machine, such as n1-standard-8.")
    if bool(cluster.gpus) != bool(accelerator):
        raise LaunchError("--gpus and --accelerator belong together, such as --gpus 1 --accelerator NVIDIA_TESLA_T4.")
    pools = [_pool(cluster, token, machine, accelerator, count) for count in (1, cluster.workers - 1) if count]
    return manifests(_HEADER.format(name=cluster.name), {"workerPoolSpecs": pools})


def _pool(cluster: ClusterJob, token: str, machine: str, accelerator: str | None, count: int) -> dict[str, object]:
    machines: dict[str, object] = {"machineType": machine}  # It determines memory and cores, too.
    if accelerator:
        machines |= {"acceleratorType": accelerator, "acceleratorCount": cluster.gpus}
    variables = {
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        environment_names.TOKEN: token,
        **cluster.device_variables,
    }
    container = {
        "imageUri": cluster.image,
        "command": ["python", cluster.script],
        "args": [*cluster.arguments],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
    return {"machineSpec": machines, "replicaCount": count, "containerSpec": container}
