"""Nests of arguments and results as JSON, so that they can be rebuilt without the code that made them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax.errors import ExportError

_PLAIN = (str, bool, int, float, type(None))


def described(nest: Any, is_leaf: Any) -> tuple[Any, list[Any]]:
    """Returns a description of a nest that JSON can hold, and its leaves.

    Args:
        nest: Nest of dicts with string keys, lists and tuples.
        is_leaf: Tells what is a leaf. Anything else must be a plain Python value, which the description holds.

    Raises:
        ExportError: The nest has something else in it.
    """
    leaves: list[Any] = []

    def describe(value: Any) -> Any:
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

    return describe(nest), leaves


def rebuilt(description: Any, leaves: list[Any]) -> Any:
    """Returns the nest of a description, with `leaves` in the places of its leaves."""
    ((kind, content),) = description.items()
    if kind == "leaf":
        return leaves[content]
    if kind == "dict":
        return {key: rebuilt(item, leaves) for key, item in content.items()}
    if kind == "value":
        return content
    items = [rebuilt(item, leaves) for item in content]
    return tuple(items) if kind == "tuple" else items


def is_value(leaf: Any) -> bool:
    """Returns whether an argument is a value of the program: an array, its description, or a number; bools are not."""
    if isinstance(leaf, bool):
        return False
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, int, float, complex))
