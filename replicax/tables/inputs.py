"""The ids that a feature is given: arrays, or rows of different lengths, which are filled up."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import ArgumentError

MOST_IDS = 2**31  # Programs have ids as int32.


class Ids(NamedTuple):
    """The ids of a feature."""

    ids: jax.Array | np.ndarray  # integers of shape (batch,) or (batch, ids)
    weights: jax.Array | np.ndarray | None  # one for each id, 0 for filling


def dense_ids(inputs: object, weights: object | None, longest: int | None, feature: str) -> Ids:
    """Returns the ids of a feature as an array; rows of other lengths than `longest` are filled up or cut off."""
    rows = _rows_of(inputs, feature)
    if rows is None:
        ids = inputs if isinstance(inputs, jax.Array) else _checked_array(inputs, feature)
        return Ids(ids, None if weights is None else jnp.asarray(weights))
    given = None if weights is None else _rows_of(weights, feature)
    if weights is not None and (given is None or [len(row) for row in given] != [len(row) for row in rows]):
        raise ArgumentError(f"Feature {feature!r}: its weights have rows of other lengths than its ids.")
    length = max(map(len, rows), default=0) if longest is None else longest
    dtype = np.result_type(*[row.dtype for row in rows if len(row)] or [np.dtype(np.int32)])
    ids, filled = np.zeros((len(rows), length), dtype), np.zeros((len(rows), length), np.float32)
    for i, row in enumerate(rows):
        count = min(len(row), length)
        ids[i, :count] = row[:count]
        filled[i, :count] = 1 if given is None else given[i][:count]
    return Ids(_checked_array(ids, feature), filled)


def check_range(ids: object, rows: int | None, feature: str) -> None:
    """Checks that ids are in the table, where their numbers are known: those of a program are not.

    A table that grows (None) takes any id of int32 from 0.
    """
    if isinstance(ids, jax.core.Tracer) or (isinstance(ids, jax.Array) and not ids.is_fully_addressable):
        return
    known = np.asarray(ids)
    if jnp.issubdtype(known.dtype, jnp.floating):
        _check_floats(known, feature)
    least, end = (0, MOST_IDS) if rows is None else (-rows, rows)
    wrong = known[(known < least) | (known >= end)]
    if wrong.size:
        has = f"has the rows 0 to {end - 1}" if rows is not None else f"grows by ids from 0 to {end - 1}"
        raise ArgumentError(
            f"Feature {feature!r} has the id {wrong.flat[0]}, but its table {has}. Ids of an unknown range can be "
            "hashed: rx.keras.hashed_ids."
        )


def _check_floats(ids: np.ndarray, feature: str) -> None:
    """Checks that floating ids are whole numbers, and so small that their dtype has each of them."""
    exact = 2 ** (jnp.finfo(ids.dtype).nmant + 1)
    wrong = ids[~((ids == np.rint(ids)) & (np.abs(ids) < exact))]
    if wrong.size:
        raise ArgumentError(
            f"Feature {feature!r} has ids, integers, got {wrong.flat[0]} in an array of {ids.dtype}, which has every "
            f"whole number below {exact} only. Give ids as integers; strings and other keys can be hashed: "
            "rx.keras.hashed_ids."
        )


def _rows_of(inputs: object, feature: str) -> list[np.ndarray] | None:
    """Returns the rows of what has rows of different lengths; None for an array."""
    if isinstance(inputs, tuple) and len(inputs) == 2 and np.ndim(inputs[0]) == 1:
        return _split(*inputs, feature)
    if hasattr(inputs, "row_splits") and hasattr(inputs, "values"):
        return _split(inputs.values, inputs.row_splits, feature)
    if isinstance(inputs, np.ndarray) and inputs.dtype != object:
        return None
    if isinstance(inputs, (list, np.ndarray)) and len(inputs) and all(np.ndim(row) == 1 for row in inputs):
        return [np.asarray(row) for row in inputs]
    return None


def _split(values: object, row_splits: object, feature: str) -> list[np.ndarray]:
    flat, splits = np.asarray(values), np.asarray(row_splits)
    is_right = splits.ndim == 1 and len(splits) and splits[0] == 0 and splits[-1] == len(flat)
    if not is_right or (np.diff(splits) < 0).any():
        raise ArgumentError(
            f"Feature {feature!r}: row_splits begin with 0, do not fall, and end with the number of values, "
            f"{len(flat)}; got {splits.tolist()!r:.100}."
        )
    return np.split(flat, splits[1:-1])


def _checked_array(inputs: object, feature: str) -> np.ndarray:
    array = np.asarray(inputs)
    if jnp.issubdtype(array.dtype, jnp.floating):
        _check_floats(array, feature)
        array = array.astype(np.int64)  # Keras takes them, too.
    if not np.issubdtype(array.dtype, np.integer):
        raise ArgumentError(
            f"Feature {feature!r} has ids, integers, got {array.dtype} in shape {array.shape}. Strings and other keys "
            "can be hashed: rx.keras.hashed_ids."
        )
    return array
