"""Signs of life: giving them, and noticing that those of others have stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping

import jax

from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.membership.job_store import JobStore
from replicax.runtime.activity import SLOW_PHASES, Activity, now
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_BEATS = 0.5  # Others wait for many beats before they call this process silent.


class Watch:
    """Notices which incarnations show no change any more. Ages are counted from the beginning of a wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._seen: dict[Incarnation, tuple[list[bytes], list[float]]] = {}

    def begin(self) -> None:
        self._seen.clear()

    def silent(
        self, incarnations: Iterable[Incarnation], beats: Mapping[Incarnation, bytes], limit_s: float, dead_s: float
    ) -> set[Incarnation]:
        """Returns those whose count or activity has not changed for `limit_s`, or whose count for `dead_s`."""
        time_now = self._clock()
        found = set()
        for incarnation in incarnations:
            # A beat is a count, which a thread of its own raises, and what the thread that trains does.
            parts = beats.get(incarnation, b":").split(b":", 1)
            before, since = self._seen.get(incarnation, ([b"?", b"?"], [time_now, time_now]))
            since = [old if part == was else time_now for part, was, old in zip(parts, before, since, strict=True)]
            self._seen[incarnation] = (parts, since)
            if time_now - since[0] > min(dead_s, limit_s) or time_now - since[1] > limit_s:
                found.add(incarnation)
        return found


def doing(count: int, activity: Activity = now) -> str:
    """Returns a text that changes whenever the thread that trains has done something; in slow phases always."""
    phase, since = activity.at
    return f"{phase} {count}" if phase in SLOW_PHASES else f"{phase} {since} {activity.calls}"


class Heartbeat:
    """Gives a sign of life twice a second, from a thread of its own."""

    def __init__(self, job_store: JobStore, incarnation: Incarnation):
        self._job_store, self._incarnation = job_store, incarnation
        self._stopped = threading.Event()
        self._thread = StoppedAtEnd("replicax-meeting-pulse", self._run, stop=self._stopped.set)
        self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        count = 0
        while True:
            try:
                self._job_store.beat(self._incarnation, count, doing(count))
            except MeetingError:
                # It goes on: one that gives no sign of life is never taken in, and it may be that this thread alone
                # could not reach the store. If that is gone or cut off, the store watcher ends the process.
                pass
            except jax.errors.JaxRuntimeError:
                _log.exception("No sign of life could be given to the job store; it is tried again.")
            count += 1
            if self._stopped.wait(_SECONDS_BETWEEN_BEATS):
                return
