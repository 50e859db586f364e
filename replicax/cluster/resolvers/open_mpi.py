"""Processes started by Open MPI's mpirun."""

from __future__ import annotations

import re

from replicax.checks import checked
from replicax.cluster.addresses import join_address
from replicax.cluster.environment import text
from replicax.cluster.resolvers.ranks import RankClusterResolver
from replicax.errors import ClusterError

ORTE_URI = "OMPI_MCA_orte_hnp_uri"  # Only mpirun sets it, for its processes; Open MPI 5 does not.
_URI = re.compile(r"(?P<job>[0-9]{1,18})\..*?(tcp://(?P<v4>[^,:\]]+)[,:]|tcp6://\[(?P<v6>[^,\]]+)[,\]])")
_PORTS = 2**12


@checked
class OpenMPIClusterResolver(RankClusterResolver):
    """Reads `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` and `OMPI_COMM_WORLD_LOCAL_RANK`.

    The coordinator's address is `coordinator_address`, or what JAX derives: the host where mpirun runs, which should
    run process 0 too, with a port that follows from the id of the job. Open MPI 5 has no such variable; then it is
    `JAX_COORDINATOR_ADDRESS`, or not known.

    Example:
        >>> environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
        >>> rx.cluster_resolver.OpenMPIClusterResolver("10.0.0.1:8888", environ=environ).task_id
        1
    """

    name = "Open MPI"
    rank, count = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
    local_rank, local_count = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"

    def _told_coordinator(self) -> tuple[str, str | None]:
        uri = text(self._environ, ORTE_URI)
        if uri is None or text(self._environ, "JAX_COORDINATOR_ADDRESS"):
            return ORTE_URI, None
        found = _URI.match(uri)
        if not found:
            raise ClusterError(
                ORTE_URI,
                uri,
                "must look like '1531576320.0;tcp://10.96.0.1:34911'",
                "Set JAX_COORDINATOR_ADDRESS to 'host:port' of process 0.",
            )
        # Ids of jobs are multiples of 2^12. The port is among the highest 2^12, as in JAX.
        port = int(found["job"]) // _PORTS % _PORTS + 2**16 - _PORTS
        return ORTE_URI, join_address(found["v4"] or found["v6"], port)
