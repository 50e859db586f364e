"""The worlds of an elastic job: the sets of workers that train together, one after the other."""

from __future__ import annotations

from typing import Protocol


class Worlds(Protocol):
    """The worlds of this process, if the job is elastic."""

    def boundary(self) -> None:
        """Takes in workers that have come, and leaves a broken world: then the present world is another."""


def running() -> Worlds | None:
    """Returns the worlds of this process; None where nothing is elastic."""
    return None


def number() -> int:
    """Returns the number of the present world; 0 where nothing is elastic. It is the same on all members."""
    return 0
