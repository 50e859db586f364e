"""How many workers and servers a cluster has: by arguments, or by the environment variables named here."""

from __future__ import annotations

from typing import NamedTuple

from replicax.checks import is_int
from replicax.checks.environment_names import PS_SERVERS, PS_WORKERS
from replicax.cluster.environment import Environ, number, text
from replicax.errors import ClusterError

_CURE = f"{PS_WORKERS} and {PS_SERVERS} belong together; `replicax run --ps 1 --workers 2` sets both."


class TaskCounts(NamedTuple):
    """How many tasks of each job a cluster has, at least one."""

    workers: int
    servers: int


def given_counts(workers: int | None, servers: int | None) -> TaskCounts | None:
    """Checks and returns the counts that were passed as arguments; None if neither was. One server is the default."""
    if workers is None and servers is None:
        return None
    if workers is None:
        raise ClusterError("workers", None, "is missing", "Say how many workers there are beside the servers.")
    return TaskCounts(_count("workers", workers), _count("servers", 1 if servers is None else servers))


def told_counts(environ: Environ) -> TaskCounts | None:
    """Returns the counts in the environment; None if they are not set."""
    if text(environ, PS_WORKERS) is None and text(environ, PS_SERVERS) is None:
        return None
    return TaskCounts(
        number(environ, PS_WORKERS, least=1, cure=_CURE), number(environ, PS_SERVERS, least=1, cure=_CURE)
    )


def _count(name: str, value: int) -> int:
    if not is_int(value) or value < 1:
        raise ClusterError(name, value, "must be an int of at least 1", "Leave it out if the environment tells it.")
    return int(value)
