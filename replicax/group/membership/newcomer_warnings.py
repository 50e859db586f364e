"""Warnings for scripts that let no newcomer in."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

_SECONDS_TO_WAIT = 60.0
_NOTHING_NAMED = (
    "A worker waits to join this job, and the script has not said what it is to get. Call "
    "strategy.join(rx.Checkpoint(model=model, optimizer=optimizer, data=dataset)) before the training loop, or "
    "CheckpointManager.restore_or_initialize(); Model.fit does so by itself."
)
_NO_PLACE = (
    "A worker has waited for {seconds:.0f} s to join this job. Newcomers come in where the loop asks for the next "
    "batch of the first dataset or iterator in the rx.Checkpoint that strategy.join was given, and it did not. Is the "
    "dataset that the loop reads in that checkpoint? A loop without one calls strategy.join(checkpoint) before each "
    "step."
)


class NewcomerWarnings:
    """Warns, once each, of newcomers who wait in vain."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._since: float | None = None
        self._warned: set[str] = set()

    def refused(self, is_named: bool) -> None:
        """Notes that a newcomer waits and is not taken in here."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        if not is_named:
            self._warn(_NOTHING_NAMED)
        elif now - self._since > _SECONDS_TO_WAIT:
            self._warn(_NO_PLACE.format(seconds=_SECONDS_TO_WAIT))

    def answered(self) -> None:
        """Notes that no newcomer waits any more."""
        self._since = None

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=4)
