"""The outcomes of the last calls of a member, for another one that was interrupted in the middle of one of them."""

from __future__ import annotations

import collections
from collections.abc import Callable

import numpy as np

_SMALL = 1 << 20  # bytes that may always be kept


class Outcomes:
    """The outcomes of the last calls."""

    def __init__(self) -> None:
        self.last = 0  # the number of the last call; calls are counted from 1
        self._kept: collections.deque[tuple[Callable[[], list[np.ndarray]], int]] = collections.deque()
        self._bytes = 0

    def add(self, outcome: Callable[[], list[np.ndarray]], nbytes: int) -> None:
        """Keeps the outcome of the next call."""
        self.last += 1
        self._kept.append((outcome, nbytes))
        self._bytes += nbytes
        # A member may be several calls ahead of another one, if those after a sum need no other member: a step that has
        # ended here and not there, and then a program that counts. The outcomes before the last one are kept while they
        # are no larger together than the largest: none makes a second large call while another still makes the first.
        while self._bytes - nbytes > max(_SMALL, max(size for _, size in self._kept)):
            self._bytes -= self._kept.popleft()[1]

    def begin_at(self, last: int) -> None:
        """Goes on after call `last`, which another process has made."""
        self.last = last
        self.forget()

    def forget(self) -> None:
        """Forgets all outcomes: every member has completed the last call."""
        self._bytes = 0
        self._kept.clear()

    @property
    def first(self) -> int:
        """The number of the first call whose outcome is still here; `last + 1` if there is none."""
        return self.last + 1 - len(self._kept)

    def of(self, number: int) -> list[np.ndarray]:
        """Returns the outcome of a call that is still here."""
        return self._kept[number - self.first][0]()
