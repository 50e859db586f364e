"""The variables of JAX, as Kubeflow's TrainJob sets them."""

from __future__ import annotations

from replicax.checks import checked
from replicax.cluster.addresses import join_address
from replicax.cluster.environment import Environ, number, required, text
from replicax.cluster.resolvers.base import Verdict
from replicax.cluster.resolvers.ranks import RankClusterResolver

_COORDINATOR, _PORT = "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_PORT"


@checked
class JaxClusterResolver(RankClusterResolver):
    """Reads `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and `JAX_PROCESS_ID`.

    The port may be in `JAX_COORDINATOR_PORT`.

    Example:
        >>> environ = {"JAX_COORDINATOR_ADDRESS": "10.0.0.1:8888", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
        >>> rx.cluster_resolver.JaxClusterResolver(environ=environ).task_id
        1
    """

    name = "JAX_*"
    rank, count = "JAX_PROCESS_ID", "JAX_NUM_PROCESSES"

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        """The address alone is not enough: people set it too where a scheduler gives the ids."""
        found = [name for name in (cls.count, cls.rank) if text(environ, name)]
        return Verdict(bool(found), f"{' and '.join(found) or 'neither JAX_NUM_PROCESSES nor JAX_PROCESS_ID'} set")

    def _told_coordinator(self) -> tuple[str, str | None]:
        if self.told_processes() == 1 and not text(self._environ, _COORDINATOR):
            return _COORDINATOR, None
        address = required(self._environ, _COORDINATOR, "Set it to 'host:port' of process 0.")
        if text(self._environ, _PORT) and ":" not in address:
            address = join_address(address, number(self._environ, _PORT, least=1, below=2**16))
        return _COORDINATOR, address
