"""Finding out from the environment which cluster this process is in, and saying why."""

from __future__ import annotations

import dataclasses
import logging
import os

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
from replicax.errors import ClusterError

_log = logging.getLogger(__name__)

# What somebody wrote on purpose comes first, then launchers, then schedulers; the nearer to the program, the earlier.
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
    KubernetesClusterResolver,  # Never by itself; it stands here to say so.
)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One source that was looked at.

    Attributes:
        name: What it is called, such as `"Slurm"`.
        applies: Whether the environment is one of its kind.
        because: Why, or why not.
        config: What it tells; None if it does not apply or is malformed.
        resolver: The resolver that read it; None likewise.
    """

    name: str
    applies: bool
    because: str
    config: ClusterConfig | None = None
    resolver: ClusterResolver | None = dataclasses.field(default=None, compare=False)


@dataclasses.dataclass(frozen=True)
class Detection:
    """Which cluster was found, and how.

    Attributes:
        config: Who this process is.
        winner: Name of the source that told it; None for a single process, if no source applies.
        candidates: All sources, in the order of precedence.
        conflicts: Where another source that applies contradicts the winner; a sentence each.
    """

    config: ClusterConfig
    winner: str | None
    candidates: tuple[Candidate, ...]
    conflicts: tuple[str, ...] = ()

    @property
    def resolver(self) -> ClusterResolver:
        """The resolver that told it. If none applies, one for `TF_CONFIG`, which then names no cluster and no task."""
        told = next((each.resolver for each in self.candidates if each.name == self.winner), None)
        return told or TFConfigClusterResolver()

    def __str__(self) -> str:
        if self.winner is None:
            return f"{self.config}: nothing in its environment names a cluster"
        return f"{self.config}, as told by {self.winner}"

    def report(self) -> str:
        """Returns all of it as lines of text."""
        lines = [f"This process is {self}."]
        for candidate in self.candidates:
            mark = "won" if candidate.name == self.winner else "applies" if candidate.applies else "no"
            lines.append(f"  {candidate.name:<12} {mark:<8} {candidate.because}")
        return "\n".join([*lines, *(f"  Conflict: {conflict}" for conflict in self.conflicts)])


def detect_cluster(environ: Environ | None = None) -> Detection:
    """Finds out from environment variables which cluster this process is in.

    The first source that applies wins: `REPLICAX_*`, `TF_CONFIG`, `JAX_*`, torchrun, Slurm (in a step of several
    tasks), Open MPI, PMI, TPU, SageMaker. If none applies it is a program of a single process. Kubernetes is not
    asked, since that goes over the network; its operators set `TF_CONFIG` or `JAX_*`.

    Args:
        environ: The variables; by default `os.environ`.

    Raises:
        ClusterError: What the winner reads is malformed (if it is another source, that is a conflict); or none applies,
            and a variable tells of other processes, but one that belongs to it is not set.
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
            kind.check_whole(variables)
    config = ClusterConfig() if winner is None or winner.config is None else winner.config
    return Detection(config, winner.name if winner else None, tuple(candidates), tuple(conflicts))


def found_cluster() -> ClusterConfig:
    """Returns who this process is, by the environment; warns of what contradicts it. For whoever starts a cluster.

    Raises:
        ClusterError: As `detect_cluster`.
    """
    return find_cluster().config


def find_cluster() -> Detection:
    """Does what `found_cluster` does; returns with who this process is also how that was found, and by which resolver.

    Raises:
        ClusterError: As `detect_cluster`.
    """
    found = detect_cluster()
    for conflict in found.conflicts:
        _log.warning("The environment tells of more than one cluster. %s", conflict)
    return found


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
            f"{winner.name} tells of {counts[0]} processes, {other.name} of {counts[1]}. {winner.name} is used; unset "
            "its variables if they are left over from elsewhere."
        ]
    return []


def _processes(config: ClusterConfig) -> int:
    """Returns how many processes the launcher has started: all, also those that do not train."""
    return config.processes or sum(config.spec.num_tasks(job) for job in config.spec.jobs) or 1
