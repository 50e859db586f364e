"""Where the time of a pass goes: whether the loop waits for its batches, and what their preparation waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")
_END = object()

READING = "reading"  # records, rows by their numbers, or the batches of a source that makes its own
DECODING = "decoding"  # of records, and the functions that map rows
COPYING = "copying to the devices"
_WAITS = 0.1  # of the time of the loop: more than that is worth a word
_ADVICE = {
    READING: "The source is slow: keep copies of its files here (rx.data.Cache), or read more of them at a time "
    "(rows.batch(threads=...), rows.shuffle(files=...)).",
    DECODING: "Give more threads (rows.batch(threads=...)) if there are cores, or decode once, ahead of the job.",
    COPYING: "Send smaller numbers (uint8 images, converted in the step), or larger batches.",
}


class InputTimes:
    """The seconds of the latest pass, as its two threads note them."""

    def __init__(self, in_detail: bool = False) -> None:
        self._in_detail = in_detail  # whether the source notes what it does itself
        self.steps = 0  # that the loop has got
        self.first = self.waited = 0.0  # how long the loop waited for the first of them, and for the others
        self._first_at = self._last_at = 0.0
        self._of: dict[str, float] = {}

    def got(self, began: float) -> None:
        """Notes that the loop has got a step, for which it has waited since `began`."""
        now = time.monotonic()
        if self.steps:
            self.waited += now - began
        else:
            self.first, self._first_at = now - began, now
        self.steps += 1
        self._last_at = now

    def add(self, what: str, seconds: float) -> None:
        """Notes what the preparation of a batch took."""
        self._of[what] = self._of.get(what, 0.0) + seconds

    def called(self, what: str, function: Callable[..., _Item], *arguments: object) -> _Item:
        """Calls a function, and notes how long that takes."""
        began = time.monotonic()
        try:
            return function(*arguments)
        finally:
            self.add(what, time.monotonic() - began)

    def each(self, what: str, items: Iterator[_Item]) -> Iterator[_Item]:
        """Yields items, and notes how long each takes to come."""
        while (found := [self.called(what, next, items, _END)])[0] is not _END:
            yield found.pop()  # No name for the item: it would keep a batch alive.

    def batches(self, batches: Iterator[_Item]) -> Iterator[_Item]:
        """Yields batches; notes how long each takes to come, unless the source notes it in more detail."""
        return batches if self._in_detail else self.each(READING, batches)

    def __str__(self) -> str:
        if self.steps < 2:
            return "No second batch has been taken yet: iterate over the dataset first."
        seconds = self._last_at - self._first_at
        share = self.waited / seconds if seconds else 0.0
        lines = [
            f"{self.steps} steps in {seconds:.2f} s after the first, for which the loop waited {self.first:.2f} s.",
            f"The loop waited {self.waited:.2f} s ({share:.0%}) for batches.",
        ]
        if self._of:
            spent = ", ".join(f"{what} {took:.2f} s" for what, took in sorted(self._of.items(), key=lambda of: -of[1]))
            lines.append(f"The thread that prepares them spent: {spent}.")
        if share <= _WAITS or not self._of:
            lines.append("The input keeps up with the steps." if share <= _WAITS else "The job waits for its input.")
        else:
            most = max(self._of, key=lambda what: self._of[what])
            lines.append(f"The job waits for its input, most of all for {most}. {_ADVICE[most]}")
        return "\n".join(lines)
