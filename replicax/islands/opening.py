"""Where the islands of a job meet."""

from __future__ import annotations

import jax

import replicax.group.membership.opening as membership
from replicax.cluster import ClusterConfig
from replicax.group.health import stall_timeout_from, start
from replicax.islands.all_workers import AllWorkers
from replicax.group.membership import Meeting


def open_meeting(cluster: ClusterConfig, start_timeout: float, stall_timeout: float | None, elastic: bool) -> Meeting:
    """Returns the meeting of the workers of a cluster.

    Args:
        cluster: The cluster, and who this process is.
        start_timeout: How long to wait for the others, in seconds.
        stall_timeout: How long to wait for one that does nothing, in seconds.
        elastic: Whether workers may be lost and come again.

    Raises:
        ClusterError: The cluster cannot train, or this process does not fit.
        ClusterTimeoutError: Not all workers came in time.
    """
    patience = stall_timeout_from(stall_timeout)
    if elastic or cluster.num_processes == 1:
        return membership.open_meeting(cluster, start_timeout, patience)
    members = start(cluster, start_timeout, patience)
    firsts = {device.process_index: device for device in reversed(jax.devices())}
    return AllWorkers([member.name for member in members], cluster.process_id, [firsts[i] for i in sorted(firsts)])
