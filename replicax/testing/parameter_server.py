"""A parameter server cluster for the tests of a program that trains asynchronously."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from replicax.ray_cluster.connection import RayCluster, connect, shared


@contextlib.contextmanager
def local_cluster(workers: int = 2, servers: int = 1, dashboard: bool = False) -> Iterator[RayCluster]:
    """Starts a cluster for parameter server strategies that are made in the block, and ends it afterwards.

    It listens on the loopback address, at free ports, and has a token of its own. Its start takes seconds, so let
    several tests share it: a fixture of the module can yield it. No process of it is left after the block.

    Args:
        workers: How many workers.
        servers: How many parameter servers.
        dashboard: Whether to start Ray's dashboard with it, which takes time and memory.

    Raises:
        ClusterError: Ray is not installed, or cannot start.

    Example:
        >>> with rx.testing.local_cluster(workers=2, servers=1):  # doctest: +SKIP
        ...     strategy = rx.ParameterServerStrategy()
    """
    with connect(workers=workers, servers=servers, dashboard=dashboard) as cluster, shared(cluster):
        yield cluster
