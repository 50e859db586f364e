"""Reading JSON that somebody else has written: whatever is wrong with it is a `ValueError` that says what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

_T = TypeVar("_T")


def parsed(text: str | bytes) -> Any:
    """Returns what a JSON document says.

    Raises:
        ValueError: It is no JSON, no text, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def taken(document: Any, key: str, kind: type[_T]) -> _T:
    """Returns what `document` has under `key`, which must be of type `kind`; a bool is no int.

    Raises:
        ValueError: It is no object, or has no such thing.
    """
    if not isinstance(document, dict) or key not in document:
        raise ValueError(f"{document!r:.100} has no {key!r}")
    value = document[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{key!r} should be of type {kind.__name__}, is {value!r:.100}")
    return value


def taken_count(document: Any, key: str, least: int = 0) -> int:
    """Returns the whole number, `least` or more, that `document` has under `key`.

    Raises:
        ValueError: There is none.
    """
    value = taken(document, key, int)
    if value < least:
        raise ValueError(f"{key!r} should be {least} or more, is {value}")
    return value


def taken_dtype(document: Any, key: str) -> np.dtype:
    """Returns the dtype of arrays whose name `document` has under `key`, such as `"bfloat16"`.

    Raises:
        ValueError: There is none, or one of Python objects or structures.
    """
    name = taken(document, key, str)
    try:
        dtype = np.dtype(jnp.dtype(name))
    except TypeError:
        raise ValueError(f"{name!r} is no dtype") from None
    if dtype.name != name or dtype.hasobject:
        raise ValueError(f"{name!r} is no dtype of an array")
    return dtype


def digest_of(document: Mapping[str, Any]) -> str:
    """Returns the SHA-256 of what a document says, however it is written: the order of keys and blanks do not count.

    Raises:
        ValueError: It is nested too deeply.
    """
    try:
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return hashlib.sha256(text.encode()).hexdigest()
