"""Notes of what workers and servers may drop, since nobody refers to it any more."""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import NamedTuple


class Unused(NamedTuple):
    """An object that nothing refers to any more."""

    provided: int | tuple[str, int]  # for workers to drop: a dataset, iterator or resource, or `("program", id)`
    servers: tuple[int, ...] = ()  # that may drop the program, too


class UnusedObjects:
    """Notes of what has become unused, in the order in which it did."""

    def __init__(self) -> None:
        self._notes: collections.deque[Unused] = collections.deque()

    def watch(self, owner: object, provided: int | tuple[str, int], servers: tuple[int, ...] = ()) -> None:
        """Takes a note when `owner` is gone: what was provided for it is unused then."""
        # The garbage collector does so at any moment, in any thread; that is why it only takes a note.
        weakref.finalize(owner, self._notes.append, Unused(provided, servers)).atexit = False

    def take(self) -> Iterator[Unused]:
        """Yields the notes there are, and forgets them."""
        while self._notes:
            yield self._notes.popleft()
