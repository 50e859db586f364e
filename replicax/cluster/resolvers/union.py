"""Several resolvers as one."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.cluster.resolvers.base import ClusterResolver
from replicax.cluster.spec import ClusterSpec
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError, ClusterError


class UnionResolver(ClusterResolver):
    """Joins the clusters of several resolvers. The first one says which task this process is.

    Lists of addresses for the same job are joined. If one resolver gives the indices of a job's tasks, because it
    leaves some out, all must, and each index may come only once.

    Args:
        *resolvers: At least one.
        rpc_layer: Prefix of addresses for `master`; by default the first resolver's.
        task_type: Job of this process; by default the first resolver's.
        task_id: Index of this process; by default, or if it is 0, the first resolver's.

    Raises:
        ArgumentError: There is no resolver, or an argument is not one.

    Example:
        >>> simple = rx.cluster_resolver.SimpleClusterResolver
        >>> resolver = rx.cluster_resolver.UnionResolver(simple({"worker": ["a:1"]}), simple({"ps": ["b:1"]}))
        >>> sorted(resolver.cluster_spec().jobs)
        ['ps', 'worker']
    """

    name = "UnionResolver"

    def __init__(
        self,
        *resolvers: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
    ):
        super().__init__(task_type, task_id or None, rpc_layer, environ={})  # As in TensorFlow, 0 counts as not given.
        if not resolvers:
            raise ArgumentError("UnionResolver takes at least one resolver, got none.")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise ArgumentError(f"UnionResolver takes resolvers, got {resolver!r}.")
        self._resolvers = resolvers

    def cluster_spec(self) -> ClusterSpec:
        specs = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = sorted({job for spec in specs for job in spec})
        return ClusterSpec({job: _join(job, [spec[job] for spec in specs if job in spec]) for job in jobs}, self.name)

    @property
    def environment(self) -> str | None:
        return self._resolvers[0].environment

    def master(self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None) -> str:
        """Returns the address of a task in the joined cluster; if none is named, what the first resolver says."""
        named = (task_type, task_id) != (None, None) or (self._given_type, self._given_id) != (None, None)
        if named:
            return super().master(task_type, task_id, rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer or self.rpc_layer)

    @called_as("tf.distribute.cluster_resolver.ClusterResolver.num_accelerators")
    def num_accelerators(self, task_type: str | None = None, task_id: int | None = None) -> dict[str, int]:
        return self._resolvers[0].num_accelerators(task_type, task_id)

    def told_processes(self) -> int | None:
        told = [resolver.told_processes() for resolver in self._resolvers]
        if len(told) > 1 and any(told):
            raise ClusterError(
                self.name,
                [resolver.name for resolver in self._resolvers],
                "cannot join a cluster that does not list all its tasks",
                "Join only resolvers that know every address.",
            )
        return told[0]

    def local_process_id(self) -> int | None:
        return self._resolvers[0].local_process_id()

    def _told_type(self) -> str | None:
        return self._resolvers[0].task_type

    def _told_id(self) -> int | None:
        return self._resolvers[0].task_id

    def _told_rpc_layer(self) -> str | None:
        return self._resolvers[0].rpc_layer


def _join(job: str, parts: Sequence[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    lists = [part for part in parts if isinstance(part, list)]
    if len(lists) == len(parts):
        return [address for part in lists for address in part]
    joined: dict[int, str] = {}
    for part in parts:
        numbered = dict(enumerate(part)) if isinstance(part, list) else part
        for index in numbered.keys() & joined.keys():
            raise ClusterError(
                f"{UnionResolver.name} {job}[{index}]",
                numbered[index],
                f"comes from two resolvers; the other one says {joined[index]!r}",
                "Give the tasks of each resolver other indices.",
            )
        joined |= numbered
    return joined
