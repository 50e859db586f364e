"""A cluster that the program itself knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax.cluster.environment import Environ
from replicax.cluster.resolvers.base import ClusterResolver, with_prefix
from replicax.cluster.spec import ClusterSpec
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError


class SimpleClusterResolver(ClusterResolver):
    """Gives back what it was given.

    Args:
        cluster_spec: A `ClusterSpec`, or a dict that makes one.
        master: What `master()` returns where no task is named.
        task_type: Job of this process.
        task_id: Number of this process in its job.
        environment: A label for the environment.
        num_accelerators: Accelerators of each task, by kind, such as `{"GPU": 4}`.
        rpc_layer: Prefix of addresses for `master`.

    Raises:
        ArgumentError: An argument has another type.
        ClusterError: The spec is malformed.

    Example:
        >>> spec = rx.cluster_resolver.ClusterSpec({"worker": ["10.0.0.1:8888", "10.0.0.2:8888"]})
        >>> resolver = rx.cluster_resolver.SimpleClusterResolver(spec, task_type="worker", task_id=1)
        >>> resolver.cluster_spec().num_tasks("worker"), resolver.task_id
        (2, 1)
    """

    name = "SimpleClusterResolver"

    def __init__(
        self,
        cluster_spec: ClusterSpec | Mapping[str, Sequence[str] | Mapping[int, str] | Mapping[str, str]],
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ):
        environ: Environ = {}  # It reads no variables.
        super().__init__(task_type, task_id, rpc_layer, environment, environ)
        if not isinstance(cluster_spec, (ClusterSpec, Mapping)):
            raise ArgumentError(f"`cluster_spec` must be a ClusterSpec or a dict, got {cluster_spec!r}.")
        if not isinstance(master, str):
            raise ArgumentError(f"`master` must be a string, got {master!r}.")
        self._spec = ClusterSpec(cluster_spec, "cluster_spec")
        self._master = master
        self._num_accelerators = dict(num_accelerators or {})

    def cluster_spec(self) -> ClusterSpec:
        return self._spec

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return with_prefix(self._master, rpc_layer or self.rpc_layer)

    @called_as("tf.distribute.cluster_resolver.ClusterResolver.num_accelerators")
    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        return dict(self._num_accelerators)
