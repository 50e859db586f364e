"""Waits for the tasks of a cluster until a deadline, and reports now and then which of them are missing."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from replicax.checks import is_real
from replicax.cluster.patience import Patience
from replicax.errors import ClusterError, ClusterTimeoutError

_log = logging.getLogger(__name__)
# Ray's head takes an order within 5 s, or it is out of reach. An actor or a node that was told to end has gone 10 s
# later, also on another machine; news of that may take three times as long, since Ray asks its nodes again and again.
PATIENCE = Patience(start=120.0, silence=5.0, end=10.0, again=1.0, stall=300.0)
_SECONDS_BETWEEN_LOOKS = 0.2  # until the deadline


class Deadline:
    """The end of a wait that begins now."""

    def __init__(self, seconds: float):
        if not is_real(seconds) or not 0 < seconds < math.inf:
            raise ClusterError(
                "start_timeout", seconds, "must be a positive number of seconds", "Leave it out for 120."
            )
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def passed(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self.seconds - self.passed)


def wait_for(
    missing: Callable[[], Sequence[str]],
    total: int,
    who: str,
    address: str,
    deadline: Deadline,
    patience: Patience = PATIENCE,
) -> None:
    """Returns when nothing is missing any more; raises at the deadline."""
    next_report = 3 * patience.again
    while absent := missing():
        found = f"{total - len(absent)} of {total} tasks here after {deadline.passed:.0f} s"
        if not deadline.left:
            raise ClusterTimeoutError(who, deadline.seconds, absent, address, f" ({found})")
        if deadline.passed >= next_report:
            _log.warning("%s; missing %s", found, ", ".join(absent))
            next_report = deadline.passed + 10 * patience.again
        time.sleep(min(_SECONDS_BETWEEN_LOOKS, deadline.left))
