"""replicax's own variables, which its launcher sets: they come before all others."""

from __future__ import annotations

from replicax.checks import checked, environment_names
from replicax.checks.environment_names import COORDINATOR
from replicax.cluster.environment import Environ, required, text
from replicax.cluster.resolvers.base import Verdict
from replicax.cluster.resolvers.ranks import RankClusterResolver


@checked
class ReplicaxClusterResolver(RankClusterResolver):
    """Reads `REPLICAX_COORDINATOR`, `REPLICAX_NUM_PROCESSES` and `REPLICAX_PROCESS_ID`.

    `REPLICAX_LOCAL_PROCESS_ID` and `REPLICAX_LOCAL_NUM_PROCESSES` (on this machine) may be set too.

    Example:
        >>> environ = {"REPLICAX_COORDINATOR": "10.0.0.1:8888", "REPLICAX_NUM_PROCESSES": "2"}
        >>> environ["REPLICAX_PROCESS_ID"] = "1"
        >>> rx.cluster_resolver.ReplicaxClusterResolver(environ=environ).task_id
        1
    """

    name = "REPLICAX_*"
    rank, count = environment_names.PROCESS_ID, environment_names.NUM_PROCESSES
    local_rank, local_count = environment_names.LOCAL_PROCESS_ID, environment_names.LOCAL_NUM_PROCESSES

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        """Applies if one of the three is set, since only somebody who wants to use them sets them."""
        found = [name for name in (COORDINATOR, cls.count, cls.rank) if text(environ, name)]
        return Verdict(bool(found), f"{', '.join(found) or 'none of the variables'} set")

    def _told_coordinator(self) -> tuple[str, str | None]:
        if self.told_processes() == 1:
            return COORDINATOR, text(self._environ, COORDINATOR)
        return COORDINATOR, required(self._environ, COORDINATOR, "Set it to 'host:port' of process 0.")
