"""Signs of life: giving them, and noticing that those of others have stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import jax

from replicax.errors import MeetingError
from replicax.runtime.activity import SLOW_PHASES, Activity, now
from replicax.group.membership.job_store import Board
from replicax.group.membership.quorum import Life
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_BEATS = 0.5


class Watch:
    """Notices which lives show no change any more. Ages are counted from the beginning of a wait.

    Args:
        clock: Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[Life, tuple[list[bytes], list[float]]] = {}

    def begin(self) -> None:
        """Begins to watch."""
        self._seen.clear()

    def silent(self, lives: Iterable[Life], beats: Mapping[Life, bytes], limit_s: float, dead_s: float) -> set[Life]:
        """Returns those who have not changed for too long.

        Args:
            lives: Those who are watched.
            beats: Their last signs of life: a count, and what they do.
            limit_s: After how long without a change of either they count as silent.
            dead_s: The same for the count alone, which a thread of its own raises.
        """
        time_now = self._clock()
        found = set()
        for life in lives:
            parts = beats.get(life, b":").split(b":", 1)
            before, since = self._seen.get(life, ([b"?", b"?"], [time_now, time_now]))
            since = [old if part == was else time_now for part, was, old in zip(parts, before, since, strict=True)]
            self._seen[life] = (parts, since)
            if time_now - since[0] > min(dead_s, limit_s) or time_now - since[1] > limit_s:
                found.add(life)
        return found


def doing(count: int, activity: Activity = now) -> str:
    """Returns a text that changes whenever the thread that trains has done something; in slow phases always."""
    phase, since = activity.at
    return f"{phase} {count}" if phase in SLOW_PHASES else f"{phase} {since} {activity.calls}"


class Pulse:
    """Gives a sign of life twice a second, from a thread of its own.

    Args:
        board: Where it is given.
        life: Whose it is.
    """

    def __init__(self, board: Board, life: Life):
        self._board, self._life = board, life
        self._stopped = threading.Event()
        self._thread = StoppedAtEnd("replicax-meeting-pulse", self._run, stop=self._stopped.set)
        self._thread.start()

    def stop(self) -> None:
        """Stops."""
        self._thread.stop()

    def _run(self) -> None:
        count = 0
        while True:
            try:
                self._board.beat(self._life, count, doing(count))
            except MeetingError:
                # It goes on: one that gives no sign of life is never taken in, and it may be that this thread alone
                # could not reach the board. If the board is gone or cut off, the lookout ends the process.
                pass
            except jax.errors.JaxRuntimeError:
                _log.exception("No sign of life could be given to the board of the meeting; it is tried again.")
            count += 1
            if self._stopped.wait(_SECONDS_BETWEEN_BEATS):
                return
