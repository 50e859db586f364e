"""Tasks of a Slurm job step: the processes that one `srun` has started."""

from __future__ import annotations

from collections.abc import Mapping

from replicax.checks import explained, is_int
from replicax.cluster.environment import Environ, check_complete, number, optional_number, required, text
from replicax.cluster.resolvers.base import ClusterResolver, Verdict
from replicax.cluster.resolvers.hostlist import expand_hostlist, expand_tasks_per_node
from replicax.cluster.resolvers.open_mpi import ORTE_URI
from replicax.cluster.spec import ClusterSpec
from replicax.contracts.called_as import called_as
from replicax.errors import ClusterError

_RANK, _COUNT = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"
_HOSTS, _TASKS_PER_NODE = "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_SRUN = "Start the program with srun, which sets it; or name the cluster yourself (SimpleClusterResolver)."


@explained
class SlurmClusterResolver(ClusterResolver):
    """Reads the variables of a Slurm job step.

    The tasks on a host get consecutive ports from `port_base` on. Jobs take consecutive tasks, in the order of their
    names. Hosts keep Slurm's order, which is that of the ranks. (TensorFlow sorts them by name, so that "n10"
    comes before "n2", and ranks get the addresses of other hosts.)

    Args:
        jobs: How many tasks each job has; by default all are workers.
        port_base: The first port.
        gpus_per_node: GPUs of each node; by default `SLURM_GPUS_ON_NODE`, or none.
        gpus_per_task: GPUs of each task; by default those of a node shared by as many tasks as any node has.
        tasks_per_node: Tasks on each node, as an int or in Slurm's notation (`"2(x3),1"`); by default
            `SLURM_STEP_TASKS_PER_NODE`.
        auto_set_gpu: Whether `gpu_environment()` names this task's GPUs. The resolver itself sets nothing.
        rpc_layer: Prefix of addresses for `master`.
        environ: The environment variables; by default `os.environ`.

    Raises:
        ClusterError: A number of tasks, GPUs or the port is out of range.

    Example:
        >>> environ = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "node[1-2]"}
        >>> environ["SLURM_STEP_TASKS_PER_NODE"] = "1(x2)"
        >>> rx.cluster_resolver.SlurmClusterResolver(environ=environ).cluster_spec().job_tasks("worker")
        ['node1:8888', 'node2:8888']
    """

    name = "Slurm"

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | str | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
        environ: Environ | None = None,
    ):
        super().__init__(rpc_layer=rpc_layer, environ=environ)
        given = {f"jobs[{job!r}]": count for job, count in (jobs or {}).items()}
        _check_number("port_base", port_base, least=1)
        for field, value in (*given.items(), ("gpus_per_task", gpus_per_task)):
            _check_number(field, value, least=1)
        _check_number("gpus_per_node", gpus_per_node, least=0)
        if not isinstance(tasks_per_node, str):
            _check_number("tasks_per_node", tasks_per_node, least=1)
        self._jobs = dict(jobs) if jobs else None
        self._port_base = port_base
        self._gpus_per_node, self._gpus_per_task = gpus_per_node, gpus_per_task
        self._given_tasks_per_node = tasks_per_node
        self._auto_set_gpu = auto_set_gpu

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        if text(environ, _RANK) is None or text(environ, _COUNT) is None:
            return Verdict(False, f"{_RANK} and {_COUNT} are not both set: this is not a step of srun")
        if text(environ, _COUNT) == "1":
            return Verdict(False, f"{_COUNT} is 1: the step has a single task")
        if text(environ, ORTE_URI) is not None:
            return Verdict(
                False, f"{ORTE_URI} is set: mpirun started the process, and Slurm's numbers are its daemons'"
            )
        return Verdict(True, f"{_RANK} and {_COUNT} are set")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        """Checks the variables together; a batch script has only the index of the process, 0."""
        if text(environ, ORTE_URI) is None:
            check_complete(environ, (_COUNT,), (_RANK,), (_RANK, _COUNT))

    def cluster_spec(self) -> ClusterSpec:
        addresses = [f"{host}:{self._port_base + local}" for host, local in self._places()]
        spec, start = {}, 0
        for job, count in self._job_sizes().items():
            spec[job] = addresses[start : start + count]
            start += count
        return ClusterSpec(spec, f"{self.name} cluster")

    def get_task_info(self) -> tuple[str, int]:
        """Returns job and index of this process.

        Raises:
            ClusterError: The environment is malformed, also in the methods below.
        """
        index = self._rank()
        for job, count in self._job_sizes().items():
            if index < count:
                return job, index
            index -= count
        raise AssertionError("The sizes of the jobs add up to the number of tasks, which is greater than the rank.")

    def gpu_ids(self) -> tuple[int, ...]:
        """Returns the ids of this task's GPUs on its node; each task gets consecutive ones."""
        per_task = self._gpus_of_a_task()
        _, local = self._places()[self._rank()]
        return tuple(range(local * per_task, (local + 1) * per_task))

    def gpu_environment(self) -> dict[str, str]:
        """Returns the variables to set before JAX starts, so that it sees only this task's GPUs; `{}` without GPUs."""
        gpus = self.gpu_ids() if self._auto_set_gpu else ()
        return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {}

    @called_as("tf.distribute.cluster_resolver.ClusterResolver.num_accelerators")
    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        return {"GPU": per_task} if (per_task := self._gpus_of_a_task()) else {}

    def local_process_id(self) -> int | None:
        return optional_number(self._environ, "SLURM_LOCALID")

    def _told_type(self) -> str:
        return self.get_task_info()[0]

    def _told_id(self) -> int:
        return self.get_task_info()[1]

    def _rank(self) -> int:
        count = self._count()
        return number(self._environ, _RANK, below=count, cure=f"{_COUNT} is {count}. {_SRUN}")

    def _count(self) -> int:
        return number(self._environ, _COUNT, least=1, cure=_SRUN)

    def _job_sizes(self) -> dict[str, int]:
        count = self._count()
        jobs = self._jobs or {"worker": count}
        if sum(jobs.values()) != count:
            raise ClusterError(
                "jobs", jobs, f"must have {count} tasks together ({_COUNT})", "Change the jobs, or srun's --ntasks."
            )
        return dict(sorted(jobs.items()))

    def _places(self) -> list[tuple[str, int]]:
        """Returns the host of each task and its index there."""
        hosts = expand_hostlist(required(self._environ, _HOSTS, _SRUN), _HOSTS)
        tasks = self._tasks_per_node(len(hosts))
        places = [(host, local) for host, there in zip(hosts, tasks, strict=True) for local in range(there)]
        if len(places) != self._count():
            raise ClusterError(
                _COUNT, self._count(), f"must be the tasks of all nodes together, {len(places)}", f"They are {tasks}."
            )
        if self._port_base + max(tasks) > 2**16:
            raise ClusterError(
                "port_base", self._port_base, f"leaves no ports for {max(tasks)} tasks on a node", "Take a lower one."
            )
        return places

    def _tasks_per_node(self, nodes: int) -> list[int]:
        given = self._given_tasks_per_node
        if isinstance(given, int):
            return [given] * nodes
        field = _TASKS_PER_NODE if given is None else "tasks_per_node"
        notation = required(self._environ, field, _SRUN) if given is None else given
        tasks = expand_tasks_per_node(notation, field)
        if len(tasks) != nodes:
            raise ClusterError(field, notation, f"must give the tasks of {nodes} nodes ({_HOSTS})", _SRUN)
        return tasks

    def _gpus_of_a_task(self) -> int:
        gpus = self._gpus_per_node
        if gpus is None:
            gpus = optional_number(self._environ, "SLURM_GPUS_ON_NODE") or 0
        most = max(local for _, local in self._places()) + 1
        per_task = gpus // most if self._gpus_per_task is None else self._gpus_per_task
        if per_task * most > gpus:
            raise ClusterError(
                "gpus_per_task", per_task, f"is too many for {most} tasks on a node with {gpus} GPUs", "Ask for fewer."
            )
        return per_task


def _check_number(field: str, value: object, least: int) -> None:
    if value is not None and (not is_int(value) or value < least):
        raise ClusterError(field, value, f"must be an int of at least {least}", "Pass another number.")
