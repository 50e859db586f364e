"""Manifests that start the same script on real clusters: Kubernetes and Slurm.

Pure functions from the user's options to text. The exit codes in the manifests are those of `replicax.exit_codes`.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex

from replicax.errors import LaunchError
from replicax.exit_codes import ExitCode

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 50  # A pod's name is "<name>-<index>", and Kubernetes allows 63 characters.
_MEMORY = re.compile(r"(?P<size>[1-9]\d*[MGT])i?")
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")  # Slurm's notations of a time.
_THREADS_PER_DEVICE = 2
_CPUS_PER_GPU = 8
_GB_PER_CPU = 4
_SECONDS_TO_SAVE = 120
_INDENT = " " * 14


@dataclasses.dataclass(frozen=True)
class ClusterJob:
    """A job for a real cluster.

    Attributes:
        script: The Python file that each worker runs, as the cluster's machines find it.
        arguments: Its arguments.
        name: Name of the job.
        workers: Number of workers, one on each pod or node.
        devices: Virtual CPU devices in each, where there are no GPUs.
        gpus: GPUs for each; 0 for CPUs only.
        image: The container's image (Kubernetes, which needs one).
        restarts: How often a worker may fail before the job fails.
        cpus: CPU cores for each worker; None for 8 for each GPU, or without GPUs 2 for each device.
        memory: Memory for each worker, such as `"32G"`; None for 4 GB for each core.
        shm: Size of `/dev/shm`, a part of that memory (Kubernetes).
        time: Slurm's time limit of the job: minutes, `"HH:MM:SS"` or `"D-HH:MM:SS"`.
        partition: Slurm's partition; None for its default.
        setup: The command that activates the Python environment (Slurm), such as `"source .venv/bin/activate"`.
        port: The port of worker 0, where the others meet it.
    """

    script: str
    arguments: tuple[str, ...] = ()
    name: str = "train"
    workers: int = 2
    devices: int = 1
    gpus: int = 0
    image: str = ""
    restarts: int = 3
    cpus: int | None = None
    memory: str | None = None
    shm: str = "1G"
    time: str = "24:00:00"
    partition: str | None = None
    setup: str = ""
    port: int = 12345

    def __post_init__(self) -> None:
        if not self.script:
            raise LaunchError("No script is named. Write it at the end of the command, followed by its arguments.")
        if not _NAME.fullmatch(self.name) or len(self.name) > _LONGEST_NAME:
            raise LaunchError(
                f"--name must be a name that a host can have: at most {_LONGEST_NAME} small letters, digits and "
                f"hyphens, beginning with a letter and not ending with a hyphen. Got {self.name!r}."
            )
        for option, number, least in (
            ("--workers", self.workers, 1),
            ("--devices", self.devices, 1),
            ("--gpus", self.gpus, 0),
            ("--restarts", self.restarts, 0),
            ("the number of CPUs", self.num_cpus, 1),
        ):
            if number < least:
                raise LaunchError(f"{option} must be at least {least}, got {number}.")
        if any(character.isspace() for character in self.image):
            raise LaunchError(f"--image must be the name of a container image, got {self.image!r}.")
        for what, size in (("The memory", self.memory), ("--shm", self.shm)):
            if size is not None and not _MEMORY.fullmatch(size):
                raise LaunchError(f"{what} must be a size such as 32G or 500M, got {size!r}.")
        if not _TIME.fullmatch(self.time):
            raise LaunchError(f"--time must be minutes, HH:MM:SS or D-HH:MM:SS, got {self.time!r}.")
        if self.partition is not None and (not self.partition or any(map(str.isspace, self.partition))):
            raise LaunchError(f"--partition must be the name of a partition, got {self.partition!r}.")

    @property
    def num_cpus(self) -> int:
        """CPU cores for each worker."""
        if self.cpus is not None:
            return self.cpus
        return _CPUS_PER_GPU * self.gpus or _THREADS_PER_DEVICE * self.devices

    @property
    def memory_size(self) -> str:
        """Memory for each worker, as Slurm writes it; Kubernetes adds an i."""
        return _size(self.memory or f"{_GB_PER_CPU * self.num_cpus}G")

    @property
    def command(self) -> str:
        """The command that runs the script, quoted for a shell."""
        return shlex.join(["python", self.script, *self.arguments])

    @property
    def device_variables(self) -> dict[str, str]:
        """The environment variables that determine the devices of a worker."""
        if self.gpus:  # Under Slurm, JAX would use one GPU per process.
            return {"JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(self.gpus)))}
        # With fewer than two threads per device, XLA's collectives can deadlock.
        return {"JAX_NUM_CPU_DEVICES": str(self.devices), "NPROC": str(max(_THREADS_PER_DEVICE * self.devices, 4))}


def _size(text: str) -> str:
    """Returns a size without the i at the end, which Kubernetes writes and Slurm does not."""
    return text.removesuffix("i")


def kubernetes(cluster: ClusterJob, token: str) -> str:
    """Returns the manifests of an Indexed Job, of the service that gives its pods names, and of their secret.

    Args:
        cluster: What to run.
        token: A secret for the processes of this job.

    Raises:
        LaunchError: No image is named.
    """
    if not cluster.image:
        raise LaunchError("--image must name a container image with replicax and your script in it.")
    return f"{_service_and_secret(cluster, token)}---\n{_indexed_job(cluster)}"


def _service_and_secret(cluster: ClusterJob, token: str) -> str:
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
---
apiVersion: v1
kind: Secret
metadata:
  name: {name}-token
stringData:
  token: {json.dumps(token)}
"""


def _indexed_job(cluster: ClusterJob) -> str:
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
      terminationGracePeriodSeconds: {_SECONDS_TO_SAVE} # From SIGTERM to SIGKILL: time to save a checkpoint.
      containers:
        - name: worker
          image: {json.dumps(cluster.image)} # With replicax and your script in it.
          command: ["/bin/sh", "-c"]
          args:
            - |
{_indented(_pod_script(cluster))}
          env:
{_indented(_variables(cluster), " " * 12)}
          ports:
            - containerPort: {cluster.port}
{_indented(_resources(cluster), " " * 10)}
          volumeMounts:
            - {{name: shm, mountPath: /dev/shm}}
            # - {{name: data, mountPath: /data}}
      volumes:
        # NCCL and loaders of data with several processes share memory there; a pod has 64 MiB of it by default.
        - {{name: shm, emptyDir: {{medium: Memory, sizeLimit: {_size(cluster.shm)}i}}}}
        # Checkpoints must outlive the pods: mount a volume that all workers can write to.
        # - {{name: data, persistentVolumeClaim: {{claimName: my-claim}}}}
"""


def _pod_script(cluster: ClusterJob) -> str:
    """Returns the script of a pod. JAX's processes meet at worker 0, the first in TF_CONFIG."""
    command = cluster.command.replace("$(", "$$(")  # Otherwise Kubernetes would insert one of its variables.
    hosts = ", ".join(f'"{cluster.name}-{index}.{cluster.name}:{cluster.port}"' for index in range(cluster.workers))
    task = """{"type": "worker", "index": '$JOB_COMPLETION_INDEX'}"""
    return f"""\
set -eu
export TF_CONFIG='{{"cluster": {{"worker": [{hosts}]}}, "task": {task}}}'
export JAX_COORDINATOR_ADDRESS={cluster.name}-0.{cluster.name}:{cluster.port}
export JAX_NUM_PROCESSES={cluster.workers} JAX_PROCESS_ID=$JOB_COMPLETION_INDEX
exec {command}"""


def _variables(cluster: ClusterJob) -> str:
    plain = {"KERAS_BACKEND": "jax", "PYTHONUNBUFFERED": "1", **cluster.device_variables}
    lines = [f'- {{name: {name}, value: "{value}"}}' for name, value in plain.items()]
    secret = f"{{secretKeyRef: {{name: {cluster.name}-token, key: token}}}}"
    return "\n".join([*lines, f"- {{name: REPLICAX_TOKEN, valueFrom: {secret}}}"])


def _resources(cluster: ClusterJob) -> str:
    # No limit on CPU time: a throttled worker would delay all others.
    gpus, memory = f", nvidia.com/gpu: {cluster.gpus}" if cluster.gpus else "", f"memory: {cluster.memory_size}i"
    return f'resources:\n  requests: {{cpu: "{cluster.num_cpus}", {memory}{gpus}}}\n  limits: {{{memory}{gpus}}}'


def _indented(text: str, indent: str = _INDENT) -> str:
    return "\n".join(f"{indent}{line}" for line in text.splitlines())


def slurm(cluster: ClusterJob) -> str:
    """Returns a batch script: one task on each node, which finds the others by Slurm's own variables.

    Args:
        cluster: What to run. Slurm starts no containers, so the image is not used.
    """
    gpus = f"#SBATCH --gpus-per-node={cluster.gpus}\n" if cluster.gpus else ""
    partition = f"#SBATCH --partition={cluster.partition}\n" if cluster.partition else ""
    setup = (
        cluster.setup or "# source /path/to/.venv/bin/activate   (what brings up the environment with replicax in it)"
    )
    exports = "".join(f"export {name}={value}\n" for name, value in cluster.device_variables.items())
    return f"""\
#!/bin/bash
# sbatch this-file.sh
#SBATCH --job-name={cluster.name}
#SBATCH --nodes={cluster.workers}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cluster.num_cpus}
#SBATCH --mem={cluster.memory_size}
#SBATCH --time={cluster.time}
{partition}{gpus}#SBATCH --output={cluster.name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# {_SECONDS_TO_SAVE} seconds before the time is up the workers save and ask to be resumed.
#SBATCH --signal=TERM@{_SECONDS_TO_SAVE}

set -e
{setup}
set +e -uo pipefail

export KERAS_BACKEND=jax PYTHONUNBUFFERED=1
export SRUN_CPUS_PER_TASK={cluster.num_cpus} # srun has not taken it from sbatch since Slurm 22.05.
{exports}# A secret for the processes of this job.
REPLICAX_TOKEN=$(head -c 16 /dev/urandom | od -An -v -tx1 | tr -d ' \\n')
export REPLICAX_TOKEN
export REPLICAX_ATTEMPT="${{SLURM_RESTART_COUNT:-0}}"

# When a worker has ended the others get time to save, and are then ended too.
srun --label --kill-on-bad-exit=0 --wait={_SECONDS_TO_SAVE} {cluster.command}
code=$?

# {ExitCode.RESUME:d}: saved, to be resumed. Another failure is tried {cluster.restarts} time(s) again; \
{ExitCode.USAGE:d} and {ExitCode.DIVERGED:d} would only come again.
case $code in
  0 | {ExitCode.USAGE:d} | {ExitCode.DIVERGED:d}) ;;
  {ExitCode.RESUME:d}) scontrol requeue "$SLURM_JOB_ID" ;;
  *) [ "$REPLICAX_ATTEMPT" -lt {cluster.restarts} ] && scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
"""
