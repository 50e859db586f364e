"""The contract of a cluster resolver: the questions that it answers, on any kind of cluster."""

from __future__ import annotations

import abc
import os
from typing import ClassVar, NamedTuple

from replicax.checks import is_int
from replicax.cluster.config import ClusterConfig
from replicax.cluster.environment import Environ
from replicax.cluster.spec import ClusterSpec, Task
from replicax.contracts.advice import AdvisedContract
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, ClusterError


class Verdict(NamedTuple):
    """Whether an environment belongs to a resolver, and why."""

    applies: bool
    because: str


class OwnTask(AdvisedContract):
    """The task of this process and the prefix of addresses: what the caller gave, or else what the source says."""

    # For users' classes whose constructor does not call this one.
    _given_type: str | None = None
    _given_id: int | None = None
    _given_rpc_layer: str | None = None
    _environment: str | None = None
    _environ: Environ = os.environ

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
        environ: Environ | None = None,
    ):
        self._given_type = _check_text("task_type", task_type)
        self._given_id = _check_id(task_id)
        self._given_rpc_layer = _check_text("rpc_layer", rpc_layer)
        self._environment = _check_text("environment", environment)
        self._environ = os.environ if environ is None else environ

    @property
    def task_type(self) -> str | None:
        """The job of this process; None if it is not known. It can be assigned."""
        return self._given_type if self._given_type is not None else self._told_type()

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._given_type = _check_text("task_type", task_type)

    @property
    def task_id(self) -> int | None:
        """The index of this process in its job; None if it is not known. It can be assigned."""
        return self._given_id if self._given_id is not None else self._told_id()

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._given_id = _check_id(task_id)

    @property
    def rpc_layer(self) -> str | None:
        """Prefix of addresses for `master`; None if there is none. It can be assigned."""
        return self._given_rpc_layer if self._given_rpc_layer is not None else self._told_rpc_layer()

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._given_rpc_layer = _check_text("rpc_layer", rpc_layer)

    @property
    def environment(self) -> str | None:
        """The label that was given for the environment."""
        return self._environment

    def _told_type(self) -> str | None:
        return None

    def _told_id(self) -> int | None:
        return None

    def _told_rpc_layer(self) -> str | None:
        return None


class ClusterResolver(OwnTask):
    """Tells where the tasks of a cluster are, and which of them this process is.

    A resolver reads its source again on every access and stores only its arguments. It starts nothing.

    Args:
        task_type: Job of this process; by default what the source says.
        task_id: Index of this process in its job; by default what the source says.
        rpc_layer: Prefix of addresses for `master`, such as `"grpc"`.
        environment: A label for the environment, such as `"google"`; it is not used.
        environ: The environment variables; by default `os.environ`.

    Example:
        >>> resolver = rx.cluster_resolver.SimpleClusterResolver({"worker": ["10.0.0.1:8888"]})
        >>> isinstance(resolver, rx.cluster_resolver.ClusterResolver)
        True
    """

    name: ClassVar[str]
    """The name of the source in messages; by default the name of the class."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if not any("name" in vars(base) for base in cls.__mro__):
            cls.name = cls.__name__

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        """Returns whether `environ` belongs to this resolver, without checking the details."""
        return Verdict(False, "it never applies by itself: make the resolver and pass it")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        """Checks, if `applies` says no, that nobody forgot one of the variables.

        Raises:
            ClusterError: A variable shows that there are other processes, but one that belongs to it is missing. Every
                process would train alone.
        """

    @abc.abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Returns the tasks whose addresses are known; an empty spec if there is no cluster.

        Raises:
            ClusterError: The source is malformed; also in the members below.
        """

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task, with `rpc_layer://` before it if there is one.

        Args:
            task_type: Job of the task; by default this process's own.
            task_id: Index of the task in its job; by default this process's own.
            rpc_layer: Prefix; by default the resolver's.

        Returns:
            The address, or `""` if no task was named and this process's own is not known.

        Raises:
            ClusterError: The task that was named is not in the cluster, or the source is malformed.
        """
        wanted_type = self.task_type if task_type is None else task_type
        wanted_id = self.task_id if task_id is None else task_id
        if wanted_type is None or wanted_id is None:
            return ""
        spec = self.cluster_spec()
        if task_type is None and task_id is None and not spec.has_task(wanted_type, wanted_id):
            return ""
        return with_prefix(spec.task_address(wanted_type, wanted_id), rpc_layer or self.rpc_layer)

    @called_as("tf.distribute.cluster_resolver.ClusterResolver.num_accelerators")
    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        """Returns how many accelerators a task has, by kind, as far as the source says. It asks no device."""
        return {}

    def config(self) -> ClusterConfig:
        """Returns all of this as one checked record.

        Raises:
            ClusterError: The source is malformed or contradicts itself.
        """
        return ClusterConfig(
            spec=self.cluster_spec(),
            task=_task(self.name, self.task_type, self.task_id),
            rpc_layer=self.rpc_layer,
            processes=self.told_processes(),
            local_process_id=self.local_process_id(),
            source=self.name,
        )

    def told_processes(self) -> int | None:
        """Returns the number of processes if the source knows it besides, or instead of, their addresses."""
        return None

    def local_process_id(self) -> int | None:
        """Returns the index of this process among those on its machine; None if the source does not know it."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def with_prefix(address: str, rpc_layer: str | None) -> str:
    """Returns an address with `rpc_layer://` before it, if there is one."""
    return f"{rpc_layer}://{address}" if rpc_layer and address else address


def _task(source: str, task_type: str | None, task_id: int | None) -> Task | None:
    """Returns the task of this process; None if the source knows neither its job nor its index."""
    if task_type is None and task_id is None:
        return None
    if task_type is None or task_id is None:
        missing = "task.type" if task_type is None else "task.index"
        raise ClusterError(
            f"{source} {missing}", None, "is missing", "Give both the type and the index of this task, or none."
        )
    return Task(task_type, task_id)


def _check_text(argument: str, value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ArgumentError(f"`{argument}` must be a string or None, got {value!r}.")
    return value


def _check_id(task_id: object) -> int | None:
    if task_id is None:
        return None
    if not is_int(task_id) or task_id < 0:
        raise ClusterError("task_id", task_id, "must be an int of at least 0, or None", "Tasks are numbered from 0.")
    return task_id
