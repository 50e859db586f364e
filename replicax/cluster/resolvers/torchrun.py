"""The variables that torchrun and similar launchers set for each process."""

from __future__ import annotations

from replicax.checks import checked
from replicax.cluster.addresses import join_address
from replicax.cluster.environment import number, required, text
from replicax.cluster.resolvers.ranks import RankClusterResolver


@checked
class TorchrunClusterResolver(RankClusterResolver):
    """Reads `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`; also `LOCAL_RANK` and `LOCAL_WORLD_SIZE`.

    Example:
        >>> environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "8888"}
        >>> rx.cluster_resolver.TorchrunClusterResolver(environ=environ).task_id
        1
    """

    name = "torchrun"
    rank, count = "RANK", "WORLD_SIZE"
    local_rank, local_count = "LOCAL_RANK", "LOCAL_WORLD_SIZE"

    def _told_coordinator(self) -> tuple[str, str | None]:
        if self.told_processes() == 1 and not text(self._environ, "MASTER_ADDR"):
            return "MASTER_ADDR", None
        host = required(self._environ, "MASTER_ADDR", "Set it to the name or address of the machine of process 0.")
        port = number(self._environ, "MASTER_PORT", least=1, below=2**16, cure="Set it to a free port there.")
        if text(self._environ, "TORCHELASTIC_USE_AGENT_STORE") == "True":
            # torchrun itself listens at MASTER_PORT, so all processes take the next port.
            port += 1 if port < 2**16 - 1 else -1
        return "MASTER_ADDR and MASTER_PORT", join_address(host, port)
