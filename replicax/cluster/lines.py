"""Messages between processes: one JSON object per line. Anybody who reaches the port can send anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NoReturn, TypeGuard

_DEEPEST = 16


def decoded(line: bytes | bytearray, longest: int) -> dict[str, object]:
    """Returns the JSON object in a line; raises a `ValueError` for all else, also what only Python's `json` allows."""
    if len(line) > longest:
        raise ValueError(f"the message has {len(line)} bytes; at most {longest} are allowed")
    text = bytes(line).decode()
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the message is not a JSON object")
    _check_depth(found)
    if "\\u" in text:
        # Only an escape can bring a lone surrogate, for which this raises an error.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def encoded(message: Mapping[str, object]) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def is_number(value: object, least: int, below: int) -> TypeGuard[int]:
    """Returns whether a received value is an int, not a bool, from `least` to `below - 1`."""
    return type(value) is int and least <= value < below


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the message has a key twice in one object")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is not a finite number")
    return number


def _check_depth(found: object) -> None:
    layer = [found]
    for _ in range(_DEEPEST):
        items = [item.values() if isinstance(item, dict) else item for item in layer if isinstance(item, (dict, list))]
        layer = [value for values in items for value in values]
        if not layer:
            return
    raise ValueError(f"the message is nested more than {_DEEPEST} deep")
