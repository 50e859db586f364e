"""No silent hangs: what each worker is doing, who looks after it, and what is said when the job stands still."""

from replicax.health.calls import Call, Calls, together
from replicax.health.monitor import running
from replicax.health.phases import CALLBACK, CHECKPOINT, COMPILE, FIRST_BATCH, INPUT, WAIT, exchange, phase
from replicax.health.status import status_of
from replicax.health.watching import DEFAULT_STALL_TIMEOUT_S, stall_timeout_from, start
from replicax.shown import Shown

__all__ = [
    "CALLBACK",
    "CHECKPOINT",
    "COMPILE",
    "DEFAULT_STALL_TIMEOUT_S",
    "FIRST_BATCH",
    "INPUT",
    "WAIT",
    "Call",
    "Calls",
    "exchange",
    "phase",
    "report",
    "stall_timeout_from",
    "start",
    "together",
]


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
