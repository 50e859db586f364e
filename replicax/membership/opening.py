"""Opening the meeting of a job."""

from __future__ import annotations

from replicax.cluster import ClusterConfig
from replicax.errors import MeetingError
from replicax.membership.meeting import Meeting
from replicax.membership.solo import SoloMeeting


def open_meeting(config: ClusterConfig, timeout_s: float, stall_timeout: float | None) -> Meeting:
    """Returns the meeting of the processes of a cluster.

    `jax.distributed` must not connect them: each keeps a JAX of its own, which knows only its own devices, so that the
    loss of another process cannot harm it. The sums go through a second client of XLA for CPUs with Gloo's collectives,
    made anew whenever other processes take part.

    Args:
        config: The cluster and the place of this process in it.
        timeout_s: How long to wait for the others at the start, in seconds.
        stall_timeout: After how many seconds without a sign of life a process counts as lost, and how long to wait in
            `gather` for one that lives; None for 300.

    Raises:
        ClusterTimeoutError: The others did not come in time.
        MeetingError: The meeting cannot be opened.
    """
    if config.num_processes == 1:
        return SoloMeeting(str(config.task or "worker:0"))
    raise MeetingError(f"{config} cannot meet others yet.")
