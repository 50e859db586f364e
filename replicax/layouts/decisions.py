"""The layout that is decided for a variable, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from jax.sharding import PartitionSpec

from replicax.contracts.variable_access import VariableLike
from replicax.runtime.mesh import longest_divisible

#: For each dimension of a variable the name of the mesh axis that cuts it, or None.
Axes = tuple[str | None, ...]

MIN_SIZE = 2**12  # elements; a smaller variable saves little memory when it is cut, and costs a message


class Decision(NamedTuple):
    """The layout of a variable."""

    axes: Axes  # for each dimension the mesh axis that cuts it, or None
    rule: str  # the rule that decided, in words
    shortfall: str = ""  # why less is cut than the rule would cut; empty if nothing is missing
    is_asked_for: bool = False  # by a user, for this variable

    @property
    def is_cut(self) -> bool:
        """Whether an axis cuts the variable."""
        return any(axis is not None for axis in self.axes)

    @property
    def why(self) -> str:
        """The rule, and why it did not do all it could."""
        return "; ".join(filter(None, (self.rule, self.shortfall)))

    def spec(self, renamed: Mapping[str, str] = MappingProxyType({})) -> PartitionSpec:
        """Returns the layout as JAX writes it, without None at its end, and with axes under other names."""
        last = max((i for i, axis in enumerate(self.axes) if axis is not None), default=-1)
        return PartitionSpec(*(renamed.get(axis, axis) if axis else None for axis in self.axes[: last + 1]))


class Rules(Protocol):
    """Decides about variables that are no optimizer's."""

    def decide(self, variable: VariableLike) -> Decision:
        """Returns the layout of a variable; LayoutError if the one that a user has asked for does not fit it."""

    def unused(self) -> Sequence[str]:
        """Returns the patterns of a user's that have matched no variable so far."""


def whole(shape: Sequence[int], rule: str, shortfall: str = "") -> Decision:
    """Returns the decision that every device holds all of a variable."""
    return Decision((None,) * len(shape), rule, shortfall)


def over_data(shape: Sequence[int], axis: str, parts: int, min_size: int) -> Decision:
    """Returns the layout of a fully sharded variable: cut along its longest dimension that a mesh axis divides.

    Example:
        >>> over_data((700, 512), "batch", 8, 4096).axes
        (None, 'batch')
    """
    if parts == 1:
        return whole(shape, "there is one device" if axis == "replica" else f"there is one device along {axis!r}")
    size = math.prod(shape)
    if size < min_size:
        return whole(shape, f"{size} elements, fewer than min_size={min_size}")
    cut = longest_divisible(shape, parts)
    if cut is None:
        return whole(shape, "", f"{parts} devices divide none of its dimensions")
    return Decision(
        tuple(axis if i == cut else None for i in range(len(shape))), f"longest dimension that {parts} devices divide"
    )
