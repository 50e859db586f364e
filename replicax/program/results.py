"""Results of `strategy.run` count as one per replica, also where one array stands for all of them.

`run` returns a value that is proven equal on all replicas as one plain array. It is still each replica's own: a sum
over R replicas is R times that value, and `gather` repeats it, as if it had not been proven. So such an array carries
the number of replicas that returned it, and what `reduce` and `gather` return is marked as combined. An array
that is computed from either outside of `run` is like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.typing import Leaf

#: The number of an array that has been reduced or gathered: it counts once.
COMBINED = 0

_NUMBER = "_replicax_returned_by"  # an attribute of the array: nothing else dies with it and costs so little


class Counts:
    """Which of the arrays that a program is traced with count as one per replica, or are combined."""

    def __init__(self, arguments: Sequence[jax.Array] = (), replicas: Sequence[int | None] = ()):
        # By id; each entry holds its array, so that ids stay unique.
        self._results: dict[int, tuple[jax.Array, int]] = {}
        self._arguments = {id(a): (a, i, n) for i, (a, n) in enumerate(zip(arguments, replicas, strict=True))}
        # By the argument's position, the numbers that the program has asked for: it is right for those only.
        self.asked: dict[int, int | None] = {}

    def note(self, array: jax.Array, replicas: int) -> None:
        """Notes that `array` is what so many replicas returned."""
        self._results[id(array)] = (array, replicas)

    def of(self, array: jax.Array) -> int | None:
        """Returns how many replicas returned `array`; None if it is no result of `run`."""
        if id(array) in self._results:
            return self._results[id(array)][1]
        if id(array) not in self._arguments:
            return None
        _, position, replicas = self._arguments[id(array)]
        self.asked[position] = replicas
        return replicas

    def of_results(self, leaves: Sequence[jax.Array]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Returns pairs: a result's position and its number; a result's position and that of the argument it is."""
        known = [(i, self._results[id(leaf)][1]) for i, leaf in enumerate(leaves) if id(leaf) in self._results]
        passed = [(i, self._arguments[id(leaf)][1]) for i, leaf in enumerate(leaves) if id(leaf) in self._arguments]
        return known, passed


def mark(array: Leaf, replicas: int | None) -> None:
    """Notes on a computed array that it is what so many replicas returned."""
    if replicas is not None and isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
        setattr(array, _NUMBER, replicas)


def marked_with(array: Leaf) -> int | None:
    """Returns how many replicas returned a computed array; None if it is no result of `run`."""
    return getattr(array, _NUMBER, None) if isinstance(array, jax.Array) else None


def marked_like(new: jax.Array, old: jax.Array) -> jax.Array:
    """Returns `new`, the array `old` in another place, which counts as that does."""
    mark(new, marked_with(old))
    return new
