"""A RayJob of KubeRay: a Ray cluster on Kubernetes on which `replicax run --on auto` starts the workers."""

from __future__ import annotations

import json
import shlex

from replicax.checks.environment_names import JOB
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob
from replicax.job.templates.kubernetes import indented, resources

# KubeRay pastes the entrypoint into a shell script, and Ray quotes it a second time, for Windows. This one has nothing
# that either could change; the command itself travels in a variable.
_ENTRYPOINT = f"sh -c 'printenv {JOB} > /tmp/replicax-job.sh && exec sh /tmp/replicax-job.sh'"
_HEAD = """resources:
  requests: {cpu: "2", memory: 8Gi}
  limits: {memory: 8Gi}"""


def kuberay(cluster: ClusterJob) -> str:
    """Returns the manifest of a RayJob: one worker of the job on each pod of Ray's, and a head without workers."""
    cluster.check_image("replicax[ray]")
    return f"""\
# kubectl apply -f this-file.yaml        (the KubeRay operator 1.5.1 or newer, and Ray 2.52 or newer in the image)
# kubectl logs -f -l job-name={cluster.name}
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: {cluster.name}
spec:
  entrypoint: {_ENTRYPOINT} # What {JOB} says.
  backoffLimit: 0 # `replicax run` itself starts the workers again. With 1, a head that is lost is made anew once.
  shutdownAfterJobFinishes: true
  rayClusterSpec:
    authOptions: {{mode: token}} # Whoever reaches Ray's ports could otherwise run code there.
    headGroupSpec:
      rayStartParams: {{num-cpus: "0", num-gpus: "0"}} # No workers there.
      template:
        spec:
{indented(_pod("ray-head", cluster, _HEAD, {JOB: _command(cluster)}), " " * 10)}
    workerGroupSpecs:
      - groupName: workers
        replicas: {cluster.workers}
        minReplicas: {cluster.workers}
        maxReplicas: {cluster.workers}
        rayStartParams: {{num-cpus: "{cluster.num_cpus}", num-gpus: "{cluster.gpus}"}}
        template:
          spec:
            terminationGracePeriodSeconds: {SECONDS_TO_SAVE} # From SIGTERM to SIGKILL: time to save a checkpoint.
{indented(_pod("ray-worker", cluster, resources(cluster), {}), " " * 12)}
"""


def _pod(name: str, cluster: ClusterJob, container_resources: str, variables: dict[str, str]) -> str:
    """Returns what the pods of the head and of the workers have in common. KubeRay adds ports and /dev/shm itself."""
    environment = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1", **variables}
    lines = "\n".join(f"- {{name: {key}, value: {json.dumps(value)}}}" for key, value in environment.items())
    return f"""\
containers:
  - name: {name}
    image: {json.dumps(cluster.image)} # With replicax[ray] and your script in it.
{indented(container_resources, " " * 4)}
    env:
{indented(lines, " " * 6)}
    # Checkpoints must outlive the pods: mount a volume that all workers can write to.
    # volumeMounts: [{{name: data, mountPath: /data}}]
# volumes: [{{name: data, persistentVolumeClaim: {{claimName: my-claim}}}}]"""


def _command(cluster: ClusterJob) -> str:
    """Returns the command of the job, for a shell, as the value of a container's variable."""
    options = ["--on", "auto", "--workers", str(cluster.workers), "--restarts", str(cluster.restarts)]
    devices = [] if cluster.gpus else ["--devices-per-worker", str(cluster.devices)]
    command = shlex.join(["replicax", "run", *options, *devices, cluster.script, *cluster.arguments])
    return f"exec {command}".replace("$(", "$$(")  # Otherwise Kubernetes would insert one of its variables.
