"""A job for a real cluster: its options, checked, and what each worker gets."""

from __future__ import annotations

import dataclasses
import re
import shlex

from replicax.errors import LaunchError

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LONGEST_NAME = 50  # A pod's name is "<name>-<index>", and Kubernetes allows 63 characters.
_MEMORY = re.compile(r"(?P<size>[1-9]\d*[MGT])i?")
_TIME = re.compile(r"\d+|\d+:\d\d(:\d\d)?|\d+-\d+(:\d\d){0,2}")  # Slurm's notations of a time.
_THREADS_PER_DEVICE = 2
_CPUS_PER_GPU = 8
_GB_PER_CPU = 4
SECONDS_TO_SAVE = 120  # before a worker that is told to end is killed


@dataclasses.dataclass(frozen=True)
class ClusterJob:
    """A job for a real cluster."""

    script: str  # the Python file that each worker runs, as the cluster's machines find it
    arguments: tuple[str, ...] = ()
    name: str = "train"
    workers: int = 2  # one on each pod or node
    devices: int = 1  # virtual CPU devices in each worker, where there are no GPUs
    gpus: int = 0  # for each worker; 0 for CPUs only
    image: str = ""  # the container's; Slurm starts none
    restarts: int = 3  # how often a worker may fail before the job fails
    cpus: int | None = None  # cores for each worker; None for 8 for each GPU, or without GPUs 2 for each device
    memory: str | None = None  # for each worker, such as "32G"; None for 4 GB for each core
    shm: str = "1G"  # the size of `/dev/shm`, a part of that memory (Kubernetes, Compose)
    time: str = "24:00:00"  # Slurm's limit for the job: minutes, "HH:MM:SS" or "D-HH:MM:SS"
    partition: str | None = None  # Slurm's; None for its default
    setup: str = ""  # the command that activates the Python environment (Slurm), such as "source .venv/bin/activate"
    port: int = 12345  # of worker 0, where the others meet it

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

    def check_image(self, package: str = "replicax") -> None:
        """Checks that there is an image, for what starts containers."""
        if not self.image:
            raise LaunchError(f"--image must name a container image with {package} and your script in it.")

    @property
    def num_cpus(self) -> int:
        """CPU cores for each worker."""
        if self.cpus is not None:
            return self.cpus
        return _CPUS_PER_GPU * self.gpus or _THREADS_PER_DEVICE * self.devices

    @property
    def memory_size(self) -> str:
        """Memory for each worker, as Slurm writes it; Kubernetes adds an i."""
        return plain_size(self.memory or f"{_GB_PER_CPU * self.num_cpus}G")

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


def plain_size(text: str) -> str:
    """Returns a size without the i at the end, which Kubernetes writes and Slurm does not."""
    return text.removesuffix("i")
