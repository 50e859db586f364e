"""The meeting of a job of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.group.membership.meeting import Roll


class SoloMeeting:
    """A meeting of one: each sum is the value itself.

    Args:
        name: What it is called in messages.
    """

    index, size = 0, 1

    def __init__(self, name: str = "worker:0"):
        self.names = (name,)
        self._number = 0

    def gather(self, what: str, note: bytes) -> Roll:
        """Returns a roll with this process alone."""
        self._number += 1
        return Roll(self._number, (0,), (note,))

    def total(self, roll: Roll, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the values."""
        return list(values)

    def leave(self) -> None:
        """Does nothing."""
