"""Finds out from the environment which cluster this process is in, and why."""

from __future__ import annotations

import dataclasses
import logging
import os

from replicax.checks import explained
from replicax.cluster.config import ClusterConfig
from replicax.cluster.environment import Environ
from replicax.cluster.resolvers.base import ClusterResolver
from replicax.cluster.resolvers.jax_variables import JaxClusterResolver
from replicax.cluster.resolvers.kubernetes import KubernetesClusterResolver
from replicax.cluster.resolvers.open_mpi import OpenMPIClusterResolver
from replicax.cluster.resolvers.own import ReplicaxClusterResolver
from replicax.cluster.resolvers.pmi import PMIClusterResolver
from replicax.cluster.resolvers.sagemaker import SageMakerClusterResolver
from replicax.cluster.resolvers.slurm import SlurmClusterResolver
from replicax.cluster.resolvers.tf_config import TFConfigClusterResolver
from replicax.cluster.resolvers.torchrun import TorchrunClusterResolver
from replicax.cluster.resolvers.tpu import TPUClusterResolver
from replicax.errors import ArgumentError, ClusterError

_log = logging.getLogger(__name__)

# Explicit settings come first, then launchers, then schedulers: the closer to the program, the earlier.
PRECEDENCE: tuple[type[ClusterResolver], ...] = (
    ReplicaxClusterResolver,
    TFConfigClusterResolver,
    JaxClusterResolver,
    TorchrunClusterResolver,
    SlurmClusterResolver,
    OpenMPIClusterResolver,
    PMIClusterResolver,
    TPUClusterResolver,
    SageMakerClusterResolver,
    KubernetesClusterResolver,  # It never applies by itself; it is listed to say so.
)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One source that was examined."""

    name: str  # such as "Slurm"
    applies: bool
    because: str  # why it applies, or why not
    config: ClusterConfig | None = None  # None if the source does not apply or is malformed
    resolver: ClusterResolver | None = dataclasses.field(default=None, compare=False)  # that read it, if any


@dataclasses.dataclass(frozen=True)
class Detection:
    """Which cluster was found, and how.

    Attributes:
        config: The cluster and the place of this process in it.
        winner: Name of the source; None for a single process, if no source applies.
        candidates: All sources, in the order of precedence.
        conflicts: A sentence for each contradiction between the winner and another source that applies.

    Example:
        >>> environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
        >>> rx.cluster_resolver.detect_cluster(environ).winner
        'torchrun'
    """

    config: ClusterConfig
    winner: str | None
    candidates: tuple[Candidate, ...]
    conflicts: tuple[str, ...] = ()

    @property
    def resolver(self) -> ClusterResolver:
        """The resolver of the winner. If no source applies, one for `TF_CONFIG`, which then names no cluster."""
        told = next((each.resolver for each in self.candidates if each.name == self.winner), None)
        return told or TFConfigClusterResolver()

    def __str__(self) -> str:
        if self.winner is None:
            return f"{self.config}: nothing in its environment names a cluster"
        return f"{self.config}, according to {self.winner}"

    def report(self) -> str:
        """Returns all of this as lines of text."""
        lines = [f"This process is {self}."]
        for candidate in self.candidates:
            mark = "won" if candidate.name == self.winner else "applies" if candidate.applies else "no"
            lines.append(f"  {candidate.name:<12} {mark:<8} {candidate.because}")
        return "\n".join([*lines, *(f"  Conflict: {conflict}" for conflict in self.conflicts)])


@explained
def detect_cluster(environ: Environ | None = None) -> Detection:
    """Finds out from environment variables which cluster this process is in.

    The first source that applies wins: `REPLICAX_*`, `TF_CONFIG`, `JAX_*`, torchrun, Slurm (in a step of several
    tasks), Open MPI, PMI, TPU, SageMaker. If none applies, the program has a single process. Kubernetes is not
    asked, since that needs the network; its operators set `TF_CONFIG` or `JAX_*`.

    Args:
        environ: The variables; by default `os.environ`.

    Raises:
        ClusterError: The winner's variables are malformed (in another source, that is a conflict); or none applies, but
            a variable shows that there are other processes, and one that belongs to it is not set.

    Example:
        >>> print(rx.cluster_resolver.detect_cluster({}))
        a single process: nothing in its environment names a cluster
    """
    variables: Environ = os.environ if environ is None else environ
    candidates: list[Candidate] = []
    winner: Candidate | None = None
    conflicts: list[str] = []
    for kind in PRECEDENCE:
        candidate = _look(kind, variables, winner)
        winner = winner or (candidate if candidate.applies else None)
        if winner and candidate.applies and candidate is not winner:
            conflicts += _contradictions(winner, candidate)
        candidates.append(candidate)
    if winner is None:
        for kind in PRECEDENCE:
            kind.check_complete(variables)
    config = ClusterConfig() if winner is None or winner.config is None else winner.config
    return Detection(config, winner.name if winner else None, tuple(candidates), tuple(conflicts))


def found_cluster() -> ClusterConfig:
    """Returns the cluster that the environment describes, and warns of contradictions."""
    return find_cluster().config


def find_cluster() -> Detection:
    """Returns the cluster that the environment describes and how it was found, and warns of contradictions."""
    found = detect_cluster()
    for conflict in found.conflicts:
        _log.warning("The environment describes more than one cluster. %s", conflict)
    return found


def cluster_of(resolver: ClusterResolver | None) -> tuple[ClusterResolver | None, ClusterConfig]:
    """Returns the resolver and the cluster that a strategy is made with: those that are given, or those found."""
    if resolver is None:
        found = find_cluster()
        return found.resolver, found.config
    if not isinstance(resolver, ClusterResolver):
        raise ArgumentError(f"`cluster_resolver` is a ClusterResolver, got {resolver!r:.100}.")
    return resolver, resolver.config()


def _look(kind: type[ClusterResolver], variables: Environ, winner: Candidate | None) -> Candidate:
    applies, because = kind.applies(variables)
    if not applies:
        return Candidate(kind.name, False, because)
    resolver = kind(environ=variables)
    try:
        config = resolver.config()
    except ClusterError as error:
        if winner is None:
            raise
        return Candidate(kind.name, True, f"{because}, but cannot be read: {error}")
    rest = f"comes after {winner.name}; it says: {config}" if winner else str(config)
    return Candidate(kind.name, True, f"{because}; {rest}", config, resolver)


def _contradictions(winner: Candidate, other: Candidate) -> list[str]:
    if winner.config is None or other.config is None:
        return [f"{winner.name} is used, but {other.name} applies too: {other.because}"]
    counts = _processes(winner.config), _processes(other.config)
    if counts[0] != counts[1]:
        return [
            f"{winner.name} describes {counts[0]} processes, {other.name} {counts[1]}. {winner.name} is used; unset "
            "its variables if they are left over from another job."
        ]
    return []


def _processes(config: ClusterConfig) -> int:
    """Returns how many processes the launcher has started, including those that do not train."""
    return config.processes or sum(config.spec.num_tasks(job) for job in config.spec.jobs) or 1
