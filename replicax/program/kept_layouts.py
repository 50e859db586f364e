"""Arrays that stay sharded from step to step: the state of a loop in plain JAX, as `replicate` cuts it.

A program notes how each of its arguments is cut. A result that takes the place of such an argument is cut alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import jax
from jax.sharding import NamedSharding

from replicax.runtime.transfer import HOST_MEMORY
from replicax.typing import Leaf

#: For each of some arrays how it is cut; None for one that is whole on each device.
CutLayouts: TypeAlias = Sequence[NamedSharding | None]
#: The keys that lead to a leaf of a tree.
Path: TypeAlias = tuple[Hashable, ...]


def layout_in(value: Leaf) -> NamedSharding | None:
    """Returns how an array is sharded over devices; None for one that each of them has in full, and any other value."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        return None
    sharding = value.sharding
    if not isinstance(sharding, NamedSharding) or sharding.is_fully_replicated:
        return None
    return None if sharding.memory_kind == HOST_MEMORY else sharding


class KnownLayouts:
    """How arrays of a program are cut, or that they are whole, as far as that is known while it is traced."""

    def __init__(self, arguments: Sequence[jax.Array] = (), layouts: CutLayouts = ()):
        # By id; each entry holds its array, so that ids stay unique.
        self._known: dict[int, tuple[jax.Array, NamedSharding]] = {}
        for array, layout in zip(arguments, layouts, strict=True):
            self.note(array, layout)

    def note(self, array: jax.Array, layout: NamedSharding | None) -> None:
        if layout is not None:
            self._known[id(array)] = array, layout

    def of(self, array: jax.Array) -> NamedSharding | None:
        """Returns how `array` is cut, None if nothing is known."""
        return self._known[id(array)][1] if id(array) in self._known else None

    def of_results(self, leaves: Sequence[jax.Array]) -> dict[int, NamedSharding]:
        """Returns how a program's results are cut, by their positions."""
        found = {i: self.of(leaf) for i, leaf in enumerate(leaves)}
        return {i: layout for i, layout in found.items() if layout is not None}


def layouts_of_results(
    arguments: Sequence[tuple[tuple[int, ...], NamedSharding | None]],
    shapes: Sequence[tuple[int, ...] | None],  # None for a result that is never cut
    paths: Callable[[], tuple[Sequence[Path], Sequence[Path]]],  # of the arguments, and of the results
) -> list[NamedSharding | None]:
    """Returns how results are cut: each as an argument of its shape; of several, the one whose path is most alike."""
    cut: dict[tuple[int, ...], dict[int, NamedSharding]] = {}
    for i, (shape, layout) in enumerate(arguments):
        if layout is not None:
            cut.setdefault(shape, {})[i] = layout

    def layout_of(number: int, shape: tuple[int, ...] | None) -> NamedSharding | None:
        among = {} if shape is None else cut.get(shape, {})
        if len(set(among.values())) <= 1:
            return next(iter(among.values()), None)
        of_arguments, of_results = paths()
        return among[max(among, key=lambda i: _same_at_end(of_arguments[i], of_results[number]))]

    return [layout_of(number, shape) for number, shape in enumerate(shapes)]


def _same_at_end(one: Path, other: Path) -> int:
    """Returns how many keys two paths have in common at their ends."""
    same = [a == b for a, b in zip(reversed(one), reversed(other), strict=False)]
    return same.index(False) if False in same else len(same)
