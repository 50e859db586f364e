"""The cluster and the place of this process in it: one frozen record, and what follows from it."""

from __future__ import annotations

import dataclasses

from replicax.checks import explained, is_int
from replicax.cluster.spec import ClusterSpec, Task
from replicax.errors import ClusterError

ROLES = ("chief", "worker", "ps", "evaluator")
_AT_MOST_ONE = ("chief", "evaluator")


@explained
@dataclasses.dataclass(frozen=True)
class ClusterConfig:
    """A cluster, and which of its tasks this process is.

    The processes that train together are the chief (if there is one) and the workers. An evaluator works on its own.
    Parameter servers (`ps`) serve and do not count.

    Attributes:
        spec: The tasks whose addresses are known; empty for a program of one process.
        task: This process; None if there is no cluster.
        rpc_layer: Prefix of addresses as TensorFlow writes them, such as `"grpc"`.
        processes: How many processes train together, if that is known and `spec` need not list them all. All are
            workers then. None if `spec` lists them all.
        local_process_id: Index of this process among those on its machine, if it is known.
        source: Where all this comes from, for messages; it does not count in comparisons.

    Raises:
        ClusterError: A role is unknown or taken twice, or the task is missing or not in the cluster.

    Example:
        >>> cluster = rx.cluster_resolver.ClusterSpec({"worker": ["10.0.0.1:8888", "10.0.0.2:8888"]})
        >>> config = rx.cluster_resolver.ClusterConfig(cluster, rx.cluster_resolver.Task("worker", 1))
        >>> config.num_processes, config.process_id, config.is_chief
        (2, 1, False)
    """

    spec: ClusterSpec = dataclasses.field(default_factory=ClusterSpec)
    task: Task | None = None
    rpc_layer: str | None = None
    processes: int | None = None
    local_process_id: int | None = None
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        check_roles(self.spec, self._field("cluster"))
        self._check_task()
        if self.processes is not None:
            self._check_ranks(self.processes)
        elif self.spec:
            self._check_complete()

    @property
    def num_processes(self) -> int:
        """How many processes train together: chief and workers; for an evaluator the number of evaluators.

        Raises:
            ClusterError: This task is a parameter server.
        """
        self._check_trains()
        if self._is("evaluator"):
            return 1
        return self.processes or max(1, self._count("chief") + self._count("worker"))

    @property
    def process_id(self) -> int:
        """Index of this process among these: the chief is 0, then come the workers; for an evaluator its own index.

        Raises:
            ClusterError: This task is a parameter server.
        """
        self._check_trains()
        if self.task is None:
            return 0
        return self.task.index + (self._count("chief") if self._is("worker") else 0)

    @property
    def is_chief(self) -> bool:
        """Whether this process does what only one must do, such as writing logs: the chief, or worker 0 without one.

        An evaluator is its own chief, and so is a process without a cluster.
        """
        if self.task is None or not (self.spec or self.processes):
            return True
        if self._is("worker"):
            return self.task.index == 0 and not self._count("chief")
        return self.task.type in ("chief", "evaluator")

    @property
    def collective_leader(self) -> Task | None:
        """The task where the others meet: the chief or worker 0; None for an evaluator and without a cluster."""
        return None if self._is("evaluator") else self._first("chief", "worker")

    @property
    def coordination_leader(self) -> Task | None:
        """As `collective_leader`, but parameter server 0 if there is one."""
        return None if self._is("evaluator") else self._first("ps", "chief", "worker")

    @property
    def coordinator_address(self) -> str | None:
        """Address of the collective leader; None if there is none or it is not known."""
        leader = self.collective_leader
        if leader is None or not self.spec.has_task(leader.type, leader.index):
            return None
        return self.spec.task_address(leader.type, leader.index)

    @property
    def knows_all_addresses(self) -> bool:
        """Whether `spec` lists every process that trains."""
        return self.processes is None or self._count("worker") == self.processes

    def as_dict(self) -> dict[str, object]:
        """Returns the cluster and the task in the form of TF_CONFIG."""
        document: dict[str, object] = {}
        if self.spec:
            document["cluster"] = self.spec.as_dict()
        if self.task is not None:
            document["task"] = {"type": self.task.type, "index": self.task.index}
        if self.rpc_layer is not None:
            document["rpc_layer"] = self.rpc_layer
        return document

    def __str__(self) -> str:
        if self.task is None:
            return "a single process"
        if self._is("ps"):
            return f"{self.task}, a parameter server"
        where = f", coordinator {self.coordinator_address}" if self.coordinator_address else ""
        return f"{self.task}, process {self.process_id} of {self.num_processes}{where}"

    def _is(self, role: str) -> bool:
        return self.task is not None and self.task.type == role

    def _count(self, job: str) -> int:
        return self.spec.num_tasks(job) if job in self.spec.jobs else 0

    def _first(self, *jobs: str) -> Task | None:
        told = ["worker"] if self.processes else []
        return next((Task(job, 0) for job in jobs if job in [*self.spec.jobs, *told]), None)

    def _field(self, name: str) -> str:
        return f"{self.source} {name}".strip()

    def _check_trains(self) -> None:
        if self._is("ps"):
            raise ClusterError(
                self._field("task.type"), "ps", "does not take part in training", "Ask a chief, worker or evaluator."
            )

    def _check_task(self) -> None:
        task = self.task
        if task is None:
            if self.spec or self.processes is not None:
                raise ClusterError(
                    self._field("task"),
                    None,
                    "is missing: the cluster does not say which of its tasks this process is",
                    'Add "task": {"type": "worker", "index": 0}, with a type and index of its own for each process.',
                )
        elif task.type not in ROLES:
            raise ClusterError(self._field("task.type"), task.type, f"must be one of {[*ROLES]}", _rename(task.type))
        elif not self.spec and self.processes is None and (task.index > 0 or task.type == "ps"):
            raise ClusterError(
                self._field("task"),
                str(task),
                "must be the only one if there is no cluster, so not a parameter server, and its index 0",
                "List the addresses of all tasks under 'cluster', or leave the task out.",
            )

    def _check_complete(self) -> None:
        """Checks that the spec lists all tasks and this one among them. (An evaluator need not be listed.)"""
        assert self.task is not None
        if not self._count("chief") + self._count("worker"):
            raise ClusterError(
                self._field("cluster"), self.spec.jobs, "has neither a chief nor workers", "Add a job 'worker'."
            )
        for job in self.spec.jobs:
            indices = self.spec.task_indices(job)
            if indices != list(range(len(indices))):
                raise ClusterError(
                    self._field(f"cluster.{job}"),
                    indices,
                    "must number its tasks from 0 without gaps",
                    "Add the others.",
                )
        job, index = self.task.type, self.task.index
        evaluator_of_its_own = job == "evaluator" and not self._count("evaluator")
        if not evaluator_of_its_own and job not in self.spec.jobs:
            raise ClusterError(
                self._field("task.type"), job, f"must be a job of the cluster: {self.spec.jobs}", "Add it there."
            )
        tasks = 1 if evaluator_of_its_own else self._count(job)
        if index >= tasks:
            raise ClusterError(
                self._field("task.index"),
                index,
                f"must be less than {tasks}, the number of {job} tasks in the cluster",
                "Number them from 0, or add the missing addresses.",
            )

    def _check_ranks(self, processes: int) -> None:
        """Checks a cluster of which only the number of processes is known. All of them are workers."""
        assert self.task is not None
        if not is_int(processes) or processes < 1:
            raise ClusterError(self._field("processes"), processes, "must be an int of at least 1", "Count them all.")
        if not self._is("worker") or any(job != "worker" for job in self.spec.jobs):
            raise ClusterError(
                self._field("task.type"), self.task.type, "must be 'worker' where only the number of processes is known"
            )
        listed = [self.task.index, *(self.spec.task_indices("worker") if self.spec else ())]
        if max(listed) >= processes:
            raise ClusterError(
                self._field("task.index"), max(listed), f"must be less than {processes}, the number of processes"
            )


def check_roles(spec: ClusterSpec, field: str = "cluster") -> None:
    """Checks that the jobs are roles of training, and that there is at most one chief and one evaluator."""
    for job in spec.jobs:
        if job not in ROLES:
            raise ClusterError(f"{field}.{job}", job, f"must be one of {[*ROLES]}", _rename(job))
    for job in _AT_MOST_ONE:
        if job in spec.jobs and spec.num_tasks(job) > 1:
            addresses = [address for address in spec.job_tasks(job) if address is not None]
            raise ClusterError(f"{field}.{job}", addresses, "must have one task only", "Make the others workers.")


def check_synchronous(config: ClusterConfig) -> None:
    """Checks that a cluster can train synchronously: no parameter servers, and a known place to meet."""
    if "ps" in config.spec.jobs or (config.task is not None and config.task.type == "ps"):
        raise ClusterError(
            f"{config.source} cluster.ps".strip(),
            config.spec.as_dict().get("ps", "ps"),
            "is not allowed in synchronous training, where all workers hold the variables",
            "Leave the job 'ps' out, or train with a parameter server strategy.",
        )
    if config.num_processes > 1 and config.coordinator_address is None:
        raise ClusterError(
            f"{config.source} coordinator_address".strip(),
            None,
            f"is not known, so {config.num_processes} processes cannot find each other",
            "Set JAX_COORDINATOR_ADDRESS to 'host:port' of process 0, or pass `coordinator_address` to the resolver.",
        )


def _rename(job: str) -> str:
    known = {
        "master": "The Estimator's 'master' is now 'chief'.",
        "local": "A program of one process leaves 'cluster' and 'task' out.",
    }
    return known.get(job, "Rename it.")
