"""Awaited steps: now and then one is waited for, so that the ledger knows how long the devices take.

Where several processes run a program together, all of them take as long as the slowest. So from time to time the
awaited step is profiled too: how much of it is this process's own work, and how much collectives that wait for others.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import jax

from replicax.compat import jax_profiles
from replicax.runtime.clock import Clock

_SECONDS_BETWEEN_AWAITED = 1.0  # steps, which are awaited to be timed
#: The part of all time that profiles may take.
_SHARE = 0.001
_FIRST, _STEPS_BETWEEN_FIRST = 3, 3  # So many profiles come at once, whatever they take.


class Samples:
    """Decides which steps of a program are awaited."""

    def __init__(self, program: str, shared: bool):
        self._program, self._shared = program, shared
        self._profiles = self._calls = 0
        self.due = 0.0  # when the next call shall be awaited
        self._profile_due = 0.0  # and when one may be profiled

    def begun(self, clock: Clock, at: float, before: jax.Array | None) -> Sample | None:
        """Returns the sample of a call that is due; `before` is a result of the last call."""
        self._calls += 1
        is_first = self._shared and self._profiles < _FIRST
        if is_first and self._calls % _STEPS_BETWEEN_FIRST:
            return None
        profiles = is_first or (self._shared and at >= self._profile_due)
        if not is_first:
            self.due = at + _SECONDS_BETWEEN_AWAITED
        _wait_for(before)  # So that the devices begin this call at once.
        session = jax_profiles.begun() if profiles else None
        self._profiles += session is not None
        return Sample(clock, self._program, session, self)

    def note_cost(self, seconds: float) -> None:
        """Notes what a profile has taken: the next one waits for a thousand times as long."""
        self._profile_due = max(self._profile_due, time.monotonic()) + seconds / _SHARE


class Sample:
    """A call that is awaited."""

    def __init__(self, clock: Clock, program: str, session: Any, samples: Samples):
        self._clock, self._program, self._session, self._samples = clock, program, session, samples
        self._begin = time.monotonic()

    def end(self, result: jax.Array | None) -> None:
        """Waits for what the call computes, and notes how long that took."""
        _wait_for(result)
        ended = time.monotonic()
        self._clock.took(self._program, ended - self._begin)
        if self._session is None:
            return
        profile, devices, whole = jax_profiles.ended(self._session), jax.local_device_count(), ended - self._begin
        self._samples.note_cost(time.monotonic() - ended)

        def note() -> None:
            begin = time.monotonic()
            own = jax_profiles.own_seconds(profile, devices)
            self._samples.note_cost(time.monotonic() - begin)
            if own is not None:
                self._clock.note(program=self._program, own=round(own, 6), step=round(whole, 6))

        self._clock.later(note)


def _wait_for(result: jax.Array | None) -> None:
    if result is not None:
        with contextlib.suppress(Exception):  # Whoever reads the result gets the error.
            result.block_until_ready()
