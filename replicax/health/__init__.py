"""No silent hangs: what each worker is doing, who looks after it, and what is said when the job stands still."""

from replicax.health.calls import Call as Call, Calls as Calls, together as together
from replicax.health.monitor import running
from replicax.health.phases import (
    CALLBACK as CALLBACK,
    CHECKPOINT as CHECKPOINT,
    COMPILE as COMPILE,
    FIRST_BATCH as FIRST_BATCH,
    INPUT as INPUT,
    WAIT as WAIT,
    exchange as exchange,
    phase as phase,
)
from replicax.health.status import status_of
from replicax.health.watching import (
    DEFAULT_STALL_TIMEOUT_S as DEFAULT_STALL_TIMEOUT_S,
    stall_timeout_from as stall_timeout_from,
    start as start,
)
from replicax.shown import Shown

__all__ = ["report"]  # What users call; the package itself uses all the names above.


def report() -> Shown:
    """Returns what every worker of the job is doing now, a line each, for debugging.

    Any thread of any worker may call it at any time. A worker that does not answer is shown as it was last heard of.
    Without a cluster the line is that of this process.

    Example:
        >>> "last completed step" in report()
        True
    """
    monitor = running()
    return Shown(f"  worker:0   {status_of().describe()}" if monitor is None else monitor.report())
