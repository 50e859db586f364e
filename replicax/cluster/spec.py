"""The jobs of a cluster, their tasks and addresses. A spec that exists is well-formed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence

from replicax.checks import is_int
from replicax.cluster.addresses import Address, parse_address
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.shown import html_table
from replicax.errors import ClusterError

_JOB_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_FORM = 'Write {"worker": ["host0:port", "host1:port"]}, or {"worker": {"0": "host0:port"}} to name only some tasks.'

Tasks = tuple[tuple[int, str], ...]


@dataclasses.dataclass(frozen=True)
class Task:
    """One process of a cluster: a job and an index in it.

    Attributes:
        type: The job, such as `"worker"`.
        index: Index of the task within the job, from 0.

    Raises:
        ClusterError: `type` is not a name, or `index` is not an int of at least 0.

    Example:
        >>> str(rx.cluster_resolver.Task("worker", 1))
        'worker:1'
    """

    type: str
    index: int

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not _JOB_NAME.fullmatch(self.type):
            raise ClusterError("task.type", self.type, "must be the name of a job", "Such as 'worker' or 'chief'.")
        if not is_int(self.index) or self.index < 0:
            raise ClusterError("task.index", self.index, "must be an int of at least 0", "Tasks are numbered from 0.")

    @property
    def device(self) -> str:
        """How TensorFlow writes it: `"/job:worker/replica:0/task:1"`."""
        return f"/job:{self.type}/replica:0/task:{self.index}"

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"


class ClusterSpec(Advised):
    """The jobs of a cluster, with the addresses of their tasks. Immutable and hashable.

    Args:
        cluster: For each job a list of addresses `"host:port"`, or a dict from the task's index (an int, or its
            digits) to the address, which may leave tasks out. Or another `ClusterSpec`.
        field: Its name in messages.

    Raises:
        ClusterError: It is not of that form, a job has no tasks, two tasks have one address, or some addresses are
            loopback ones (such as `localhost`) and others not: other machines could not reach them.

    Example:
        >>> spec = ClusterSpec({"worker": ["host1:2222", "host2:2222"]})
        >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
        (2, 'host2:2222')
    """

    __slots__ = ("_jobs",)
    _jobs: dict[str, Tasks]

    def __init__(
        self,
        cluster: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str] | Mapping[str, str]] | None = None,
        field: str = "cluster",
    ):
        object.__setattr__(self, "_jobs", cluster._jobs if isinstance(cluster, ClusterSpec) else _read(cluster, field))

    @classmethod
    def from_json(cls, document: object, field: str = "cluster") -> ClusterSpec:
        """Returns the spec in a JSON document, in the form of the constructor's `cluster`.

        Raises:
            ClusterError: It is not of that form.
        """
        spec = cls()
        object.__setattr__(spec, "_jobs", _read(document, field))
        return spec

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return list(self._jobs)

    @called_as("tf.train.ClusterSpec.num_tasks")
    def num_tasks(self, job: str) -> int:
        """Returns the number of tasks of a job, as far as they are known.

        Raises:
            ClusterError: There is no such job; also in the methods below.
        """
        return len(self._tasks(job))

    @called_as("tf.train.ClusterSpec.task_indices")
    def task_indices(self, job: str) -> list[int]:
        """Returns the indices of the known tasks of a job, ascending."""
        return [index for index, _ in self._tasks(job)]

    @called_as("tf.train.ClusterSpec.task_address")
    def task_address(self, job: str, index: int) -> str:
        """Returns the address of a task.

        Raises:
            ClusterError: There is no such task.
        """
        addresses = dict(self._tasks(job))
        if isinstance(index, bool) or index not in addresses:
            raise ClusterError(f"index of job {job!r}", index, f"must be one of {[*addresses]}", "Name a task it has.")
        return addresses[index]

    def has_task(self, job: str, index: int) -> bool:
        """Returns whether the address of a task is known."""
        return any(index == known for known, _ in self._jobs.get(job, ()))

    @called_as("tf.train.ClusterSpec.job_tasks")
    def job_tasks(self, job: str) -> list[str | None]:
        """Returns the addresses of a job in the order of their indices; None stands for an unknown one."""
        addresses = dict(self._tasks(job))
        return [addresses.get(index) for index in range(max(addresses) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns a list of addresses for each job; for a job that leaves tasks out a dict from index to address."""
        return {
            job: [address for _, address in tasks] if tasks[-1][0] == len(tasks) - 1 else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def _tasks(self, job: str) -> Tasks:
        if not isinstance(job, str) or job not in self._jobs:
            raise ClusterError("job", job, f"must be one of {self.jobs}", "Name a job that the cluster has.")
        return self._jobs[job]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, ClusterSpec) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._jobs.items()))

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}: a ClusterSpec does not change.")

    def _repr_html_(self) -> str:
        rows = [(job, str(index), address) for job, tasks in self._jobs.items() for index, address in tasks]
        return html_table(("job", "task", "address"), rows, caption="ClusterSpec")

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"

    def __reduce__(self) -> tuple[type[ClusterSpec], tuple[dict[str, list[str] | dict[int, str]]]]:
        return type(self), (self.as_dict(),)


def _read(cluster: object, field: str) -> dict[str, Tasks]:
    if cluster is None:
        return {}
    if not isinstance(cluster, Mapping):
        raise ClusterError(field, cluster, "must be an object from jobs to addresses", _FORM)
    for job in cluster:
        if not isinstance(job, str) or not _JOB_NAME.fullmatch(job):
            raise ClusterError(field, job, "must have names of jobs as keys", _FORM)
    jobs = {job: tuple(_read_job(cluster[job], f"{field}.{job}")) for job in sorted(cluster)}
    _check_addresses(jobs, field)
    return jobs


def _read_job(tasks: object, field: str) -> Iterator[tuple[int, str]]:
    if isinstance(tasks, Mapping):
        numbered = [(_read_index(key, field), address) for key, address in tasks.items()]
        if len({index for index, _ in numbered}) < len(numbered):
            raise ClusterError(field, tasks, "names an index more than once", "Give each task an index of its own.")
    elif isinstance(tasks, (list, tuple)):
        numbered = list(enumerate(tasks))
    else:
        raise ClusterError(field, "null" if tasks is None else tasks, "must be a list of addresses", _FORM)
    if not numbered:
        raise ClusterError(field, tasks, "has no tasks", "Give their addresses, or leave the job out.")
    yield from sorted(numbered, key=lambda task: task[0])


def _read_index(key: object, field: str) -> int:
    if is_int(key) and key >= 0:
        return key
    if isinstance(key, str) and _INDEX.fullmatch(key):
        return int(key)
    raise ClusterError(f"{field} index", key, "must be an int of at least 0", _FORM)


def _check_addresses(jobs: Mapping[str, Tasks], field: str) -> None:
    seen: dict[Address, str] = {}
    for job, tasks in jobs.items():
        for index, text in tasks:
            address = parse_address(text, f"{field}.{job}[{index}]")
            if address in seen:
                raise ClusterError(
                    f"{field}.{job}[{index}]",
                    text,
                    f"has the address of {seen[address]}",
                    "Give each task an address of its own; on one machine, another port.",
                )
            seen[address] = f"{job}[{index}]"
    loopback = [name for address, name in seen.items() if address.is_loopback()]
    if loopback and len(loopback) < len(seen):
        job, _, number = loopback[0].rstrip("]").partition("[")
        raise ClusterError(
            f"{field}.{loopback[0]}",
            dict(jobs[job])[int(number)],
            "is a loopback address in a cluster of several machines: each of the others would look for it on itself",
            "Write the machine's name or address in the network, or loopback addresses only if all run on one machine.",
        )
