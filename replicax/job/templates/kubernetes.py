"""An Indexed Job of Kubernetes, with its service and secret."""

from __future__ import annotations

import json

from replicax.errors.exit_codes import ExitCode
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob, plain_size


def kubernetes(cluster: ClusterJob, token: str) -> str:
    """Returns the manifests of an Indexed Job, of the service that gives its pods names, and of their secret."""
    cluster.check_image()
    return f"{_service(cluster)}---\n{secret(cluster, token)}---\n{indexed_job(cluster, cluster.name)}"


def _service(cluster: ClusterJob) -> str:
    name = cluster.name
    return f"""\
# kubectl apply -f this-file.yaml        (Kubernetes 1.29 or newer)
# kubectl logs -f -l job-name={name} --prefix
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  clusterIP: None # Only names: {name}-0.{name}, {name}-1.{name}, ...
  publishNotReadyAddresses: true # The workers look for each other before they are ready.
  selector:
    job-name: {name}
  ports:
    - name: coordinator
      port: {cluster.port}
"""


def secret(cluster: ClusterJob, token: str) -> str:
    """Returns the manifest of the secret that the processes of a job have in common."""
    return f"""\
apiVersion: v1
kind: Secret
metadata:
  name: {cluster.name}-token
stringData:
  token: {json.dumps(token)}
"""


def indexed_job(cluster: ClusterJob, pods: str) -> str:
    """Returns the manifest of the Job."""
    name, codes = cluster.name, ExitCode
    return f"""\
apiVersion: batch/v1
kind: Job
metadata:
  name: {name}
spec:
  completionMode: Indexed
  completions: {cluster.workers}
  parallelism: {cluster.workers}
  backoffLimitPerIndex: {cluster.restarts} # Failures of one worker before the job fails.
  maxFailedIndexes: 0 # All workers are needed.
  podReplacementPolicy: Failed # Not two pods with the same index at the same time.
  podFailurePolicy:
    rules:
      # Options or programs are wrong: they would be wrong again.
      - action: FailJob
        onExitCodes:
          containerName: worker
          operator: In
          values: [{codes.USAGE:d}, {codes.DIVERGED:d}]
      # Another worker was gone, whose own end counts; or saved, to be resumed: no failure.
      - action: Ignore
        onExitCodes:
          containerName: worker
          operator: In
          values: [{codes.PEER_LOST:d}, {codes.RESUME:d}]
      # The node was drained, or the pod preempted.
      - action: Ignore
        onPodConditions:
          - type: DisruptionTarget
            status: "True"
  template:
    spec:
      restartPolicy: Never
      subdomain: {name}
      terminationGracePeriodSeconds: {SECONDS_TO_SAVE} # From SIGTERM to SIGKILL: time to save a checkpoint.
      containers:
        - name: worker
          image: {json.dumps(cluster.image)} # With replicax and your script in it.
          command: ["/bin/sh", "-c"]
          args:
            - |
{indented(_pod_script(cluster, pods), " " * 14)}
          env:
{indented(_variables(cluster), " " * 12)}
          ports:
            - containerPort: {cluster.port}
{indented(resources(cluster), " " * 10)}
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
            # - {{name: data, mountPath: /data}}
      volumes:
        # NCCL and loaders of data with several processes share memory there; a pod has 64 MiB of it by default.
        - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {plain_size(cluster.shm)}i}}}}
        # Checkpoints must outlive the pods: mount a volume that all workers can write to.
        # - {{name: data, persistentVolumeClaim: {{claimName: my-claim}}}}
"""


def _pod_script(cluster: ClusterJob, pods: str) -> str:
    """Returns the script of a pod. JAX's processes meet at worker 0, the first in TF_CONFIG."""
    command = cluster.command.replace("$(", "$$(")  # Otherwise Kubernetes would insert one of its variables.
    hosts = ", ".join(f'"{pods}-{index}.{cluster.name}:{cluster.port}"' for index in range(cluster.workers))
    task = """{"type": "worker", "index": '"$JOB_COMPLETION_INDEX"'}"""
    return f"""\
set -eu
export TF_CONFIG='{{"cluster": {{"worker": [{hosts}]}}, "task": {task}}}'
export JAX_COORDINATOR_ADDRESS={pods}-0.{cluster.name}:{cluster.port}
export JAX_NUM_PROCESSES={cluster.workers} JAX_PROCESS_ID="$JOB_COMPLETION_INDEX"
exec {command}"""


def _variables(cluster: ClusterJob) -> str:
    plain = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1", **cluster.device_variables}
    lines = [f'- {{name: {name}, value: "{value}"}}' for name, value in plain.items()]
    secret = f"{{secretKeyRef: {{name: {cluster.name}-token, key: token}}}}"
    return "\n".join([*lines, f"- {{name: REPLICAX_TOKEN, valueFrom: {secret}}}"])


def resources(cluster: ClusterJob) -> str:
    """Returns the resources that a worker's container asks for."""
    # No limit on CPU time: a throttled worker would delay all others.
    gpus, memory = f", nvidia.com/gpu: {cluster.gpus}" if cluster.gpus else "", f"memory: {cluster.memory_size}i"
    return f'resources:\n  requests: {{cpu: "{cluster.num_cpus}", {memory}{gpus}}}\n  limits: {{{memory}{gpus}}}'


def indented(text: str, indent: str) -> str:
    """Returns text with each line indented."""
    return "\n".join(f"{indent}{line}" for line in text.splitlines())
