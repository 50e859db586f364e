"""Pytrees of arguments and results as JSON, so that they can be unflattened without the code that made them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import numpy as np

from replicax.errors import ExportError
from replicax.typing import Leaf, PyTree

_PLAIN = (str, bool, int, float, type(None))

#  The structure of a pytree as JSON: a dict with one key, which says what it is: `leaf`, `value`, `dict`, `list`,
# `tuple`.
TreeDocument: TypeAlias = dict[str, object]


def flattened(tree: PyTree, is_leaf: Callable[[Leaf], bool]) -> tuple[TreeDocument, list[Leaf]]:
    """Returns the structure of a pytree as JSON can hold it, with the plain Python values in it, and its leaves."""
    leaves: list[Leaf] = []

    def describe(value: PyTree) -> TreeDocument:
        if is_leaf(value):
            leaves.append(value)
            return {"leaf": len(leaves) - 1}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {key: describe(value[key]) for key in sorted(value)}}
        if type(value) in (list, tuple):
            return {type(value).__name__: [describe(item) for item in value]}
        if isinstance(value, _PLAIN):
            return {"value": value}
        raise ExportError(
            f"An exported function takes and returns arrays in dicts (with string keys), lists and tuples, and plain "
            f"Python values, so that it needs none of your code; got {type(value).__name__}: {value!r:.100}."
        )

    return describe(tree), leaves


def unflattened(structure: TreeDocument, leaves: Sequence[Leaf]) -> PyTree:
    """Returns the pytree of a structure that `flattened` made, with `leaves` as its leaves."""
    ((kind, content),) = structure.items()
    if kind == "leaf" and isinstance(content, int):
        return leaves[content]
    if kind == "dict" and isinstance(content, dict):
        return {key: unflattened(item, leaves) for key, item in content.items()}
    if kind == "value":
        return content
    assert isinstance(content, list), kind  # Manifests are checked when they are read.
    items = [unflattened(item, leaves) for item in content]
    return tuple(items) if kind == "tuple" else items


def is_value(leaf: Leaf) -> bool:
    """Returns whether an argument is an input of the program: an array, a shape and dtype, or a number but no bool."""
    if isinstance(leaf, bool):
        return False
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, int, float, complex))
