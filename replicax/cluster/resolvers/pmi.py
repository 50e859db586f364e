"""Processes started by a launcher that speaks PMI: MPICH's and Intel MPI's mpiexec, Cray's aprun and PALS."""

from __future__ import annotations

from replicax.checks import checked
from replicax.cluster.environment import Environ, check_complete, text
from replicax.cluster.resolvers.base import Verdict
from replicax.cluster.resolvers.ranks import RankClusterResolver


@checked
class PMIClusterResolver(RankClusterResolver):
    """Reads `PMI_RANK` and `PMI_SIZE`; with `MPI_LOCALRANKID` and `MPI_LOCALNRANKS`.

    PMI does not know where process 0 is: pass `coordinator_address`, or set `JAX_COORDINATOR_ADDRESS`. PMIx
    (`PMIX_RANK`) does not know the number of processes either, so it needs `PMI_SIZE` too.

    Example:
        >>> environ = {"PMI_RANK": "1", "PMI_SIZE": "2"}
        >>> rx.cluster_resolver.PMIClusterResolver("10.0.0.1:8888", environ=environ).task_id
        1
    """

    name = "PMI"
    rank, count = "PMI_RANK", "PMI_SIZE"
    local_rank, local_count = "MPI_LOCALRANKID", "MPI_LOCALNRANKS"

    def __init__(
        self, coordinator_address: str | None = None, rpc_layer: str | None = None, environ: Environ | None = None
    ):
        super().__init__(coordinator_address, rpc_layer, environ)
        if text(self._environ, "PMI_RANK") is None and text(self._environ, "PMIX_RANK") is not None:
            self.rank = "PMIX_RANK"  # type: ignore[misc]

    @classmethod
    def applies(cls, environ: Environ) -> Verdict:
        verdict = super().applies(environ)
        if verdict.applies or text(environ, "PMIX_RANK") is None:
            return verdict
        if text(environ, "PMI_SIZE") is None:
            return Verdict(False, "PMIX_RANK is set, but the number of processes is not known (PMI_SIZE)")
        return Verdict(True, "PMIX_RANK and PMI_SIZE are set")

    @classmethod
    def check_complete(cls, environ: Environ) -> None:
        rank = cls.rank if text(environ, "PMIX_RANK") is None else "PMIX_RANK"
        check_complete(environ, (cls.count, cls.local_count), (rank, cls.local_rank), (rank, cls.count))

    def _told_coordinator(self) -> tuple[str, str | None]:
        return "coordinator_address", None
