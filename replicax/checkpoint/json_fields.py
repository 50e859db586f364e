"""Reading JSON that may be damaged or forged: whatever is wrong with it is a `ValueError` that says what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TypeVar

import jax.numpy as jnp
import numpy as np

from replicax.typing import PyTree

_T = TypeVar("_T")


def parsed(text: str | bytes) -> PyTree:
    """Returns the contents of a JSON document."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def field_of(document: object, key: str, kind: type[_T]) -> _T:
    """Returns what `document` has under `key`, which must be of type `kind`; a bool is not an int."""
    if not isinstance(document, dict) or key not in document:
        raise ValueError(f"{document!r:.100} has no {key!r}")
    value = document[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key!r} should be of type {kind.__name__}, is {value!r:.100}")
    return value


def count_of(document: object, key: str, least: int = 0) -> int:
    """Returns the whole number, `least` or more, that `document` has under `key`."""
    value = field_of(document, key, int)
    if value < least:
        raise ValueError(f"{key!r} should be {least} or more, is {value}")
    return value


def dtype_of(document: object, key: str) -> np.dtype:
    """Returns the dtype of arrays whose name `document` has under `key`, such as `"bfloat16"`."""
    name = field_of(document, key, str)
    try:
        dtype = np.dtype(jnp.dtype(name))
    except TypeError:
        raise ValueError(f"{name!r} is not a dtype") from None
    if dtype.name != name or dtype.hasobject:
        raise ValueError(f"{name!r} is not a dtype of an array")
    return dtype


def digest_of(document: Mapping[str, object]) -> str:
    """Returns the SHA-256 of the contents of a document: the order of its keys and its blanks do not count."""
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()
