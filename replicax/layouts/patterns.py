"""Layouts by patterns over the paths of variables, as `keras.distribution.LayoutMap` has them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from replicax.contracts.variable_access import TreeLeaf, VariableLike, name_of, shape_of
from replicax.errors import LayoutError
from replicax.layouts.decisions import Axes, Decision, whole

if TYPE_CHECKING:
    import keras

#: A layout as users give it: axes, or an object that has them (`keras.distribution.TensorLayout`).
LayoutLike: TypeAlias = "Sequence[str | None] | keras.distribution.TensorLayout"


class PatternRules:
    """Cuts a variable as the first pattern says that is found in its path; a variable that none matches stays whole."""

    def __init__(self, layouts: Mapping[str, LayoutLike], sizes: Mapping[str, int]):
        self._sizes = dict(sizes)
        self._layouts = {pattern: self._checked(pattern, layout) for pattern, layout in layouts.items()}
        self._matched: set[str] = set()

    def _checked(self, pattern: str, layout: LayoutLike) -> Axes:
        try:
            re.compile(pattern)
        except re.error as error:
            raise LayoutError(f"Layout pattern {pattern!r} is no regular expression: {error}.") from None
        axes: Axes = tuple(getattr(layout, "axes", layout))
        named = [axis for axis in axes if axis is not None]
        unknown = sorted(set(named) - set(self._sizes))
        if unknown or len(set(named)) < len(named):
            raise LayoutError(
                f"The layout {axes} of pattern {pattern!r} must name each mesh axis at most once, and only axes of the "
                f"mesh: {tuple(self._sizes)}. Use None for a dimension that is not cut."
            )
        return axes

    def unused(self) -> Sequence[str]:
        """Returns the patterns that have matched no variable so far."""
        return [pattern for pattern in self._layouts if pattern not in self._matched]

    def decide(self, variable: VariableLike) -> Decision:
        path, shape = name_of(variable), shape_of(variable)
        pattern = next((p for p in self._layouts if re.search(p, path)), None)
        if pattern is None:
            return whole(shape, "no pattern matches its path")
        axes = self._layouts[pattern]
        if isinstance(variable, TreeLeaf) and len(axes) != len(shape) and pattern in self._matched:
            # Part of an optimizer's state, under the keys of its parameter: the rows and columns of Adafactor.
            return whole(shape, f"pattern {pattern!r} is for arrays of {len(axes)} dimensions")
        self._check_fits(pattern, axes, path, shape)
        self._matched.add(pattern)
        rule = f"pattern {pattern!r}" if any(axes) else f"its pattern {pattern!r} cuts nothing"
        return Decision(axes, rule, is_asked_for=True)

    def _check_fits(self, pattern: str, axes: Axes, path: str, shape: Sequence[int]) -> None:
        fits = len(axes) == len(shape) and all(
            axis is None or length % self._sizes[axis] == 0 for axis, length in zip(axes, shape, strict=True)
        )
        if not fits:
            raise LayoutError(
                f"Variable {path!r} of shape {tuple(shape)} cannot have the layout {axes} of pattern {pattern!r}: it "
                f"needs one entry for each dimension, and the mesh axes {self._sizes} must divide what they cut."
            )
