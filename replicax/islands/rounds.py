"""When islands synchronize: after every H steps; with fragments, a part of the variables after every H/P steps."""

from __future__ import annotations

from collections.abc import Sequence

from replicax.checks import checked_int
from replicax.errors import ArgumentError


class Schedule:
    """Which fragments of the variables are synchronized after which step of a round.

    Fragment f of P is due after step `ceil((f + 1) * every / P)`: each is synchronized once a round, and with one
    fragment all variables are, at its end (Streaming DiLoCo, Douillard et al. 2025, arXiv:2501.18512).

    Example:
        >>> schedule = Schedule(every=50, fragments=4)
        >>> [step for step in range(1, 51) if schedule.due(step)]
        [13, 25, 38, 50]
    """

    def __init__(self, every: int, fragments: int = 1):
        self.every = checked_int("every", every, least=1)
        self.fragments = checked_int("fragments", fragments, least=1)
        if self.fragments > self.every:
            raise ArgumentError(
                f"`fragments` is {fragments}, and a round has {every} steps (`every`): at most one fragment is "
                "synchronized after each step."
            )

    def due(self, step: int) -> tuple[int, ...]:
        """Returns the fragments that are synchronized after step number `step` of a round, counted from 1."""
        return tuple(f for f in range(self.fragments) if -(-(f + 1) * self.every // self.fragments) == step)


def cut_evenly(sizes: Sequence[int], parts: int) -> list[int]:
    """Returns for each of some things the part it belongs to, so that the parts' sizes are about equal.

    Example:
        >>> cut_evenly([100, 10, 100, 10], 2)
        [0, 1, 1, 0]
    """
    # Each goes to the part that has least so far. So neighbouring layers come into different parts, as the paper's
    # strided fragments have it, and things that are added later change nothing for those before them.
    held = [0] * parts
    part_of = [0] * len(sizes)
    for i, size in enumerate(sizes):
        part_of[i] = held.index(min(held))
        held[part_of[i]] += size
    return part_of
