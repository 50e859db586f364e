"""The interface of a meeting: a quorum of the islands that take part, and sums over them.

`islands` says what is exchanged; a `Meeting` says between which islands. An exchange has two stages:

1. `gather` waits until everybody who is up has come, and returns the same `Quorum` to all of them. Each brings a small
   note (such as its weight, or that it is new); the quorum has the notes of all.
2. `total` sums arrays over those on the quorum. The arrays have the same shapes and dtypes in all islands, and each
   lies on one device. Whoever is new brings zeros and takes what comes out.

If one of them is lost in the midst of `total`, the others raise `MemberLostError` there, all of them, and none has
changed anything: they gather again, and the lost one is not on the new quorum.

An island that was stopped for too long is left out as if it had died. When it wakes it comes to a later quorum with the
note of before, while the others have moved on. So a note should say what its values belong to (the number of the
round): an island that finds notes of a later round on the quorum takes their state, as a new one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax


class Quorum(NamedTuple):
    """The islands that take part in one exchange; it is the same for all of them."""

    number: int  # of the exchange
    present: tuple[int, ...]  # indices of the islands that take part, ascending
    notes: tuple[bytes, ...]  # of each of them


class MemberLostError(Exception):
    """A member of the quorum did not come to the end of a sum. Nothing was changed: gather again."""

    def __init__(self, lost: Sequence[int] = ()):
        self.lost = tuple(lost)  # their indices; empty if they are unknown
        super().__init__(f"Members {list(self.lost)} were lost in an exchange.")


class Meeting(Protocol):
    """Where islands meet."""

    @property
    def index(self) -> int:
        """The index of this island; a replacement of a lost one has its index."""

    @property
    def size(self) -> int:
        """How many islands there are if none is lost."""

    @property
    def names(self) -> tuple[str, ...]:
        """The islands' names in messages, by index."""

    def gather(self, what: str, note: bytes) -> Quorum:
        """Waits until all that are up have come to the next exchange, each with its note of some hundred bytes."""

    def total(self, quorum: Quorum, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the sums of `values` over the quorum of the last `gather`, bit for bit the same for all of them."""
