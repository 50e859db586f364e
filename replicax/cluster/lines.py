"""Messages between processes: one JSON object in a line. Whoever can reach the port may send anything at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

_DEEPEST = 16


def decoded(line: bytes | bytearray, longest: int) -> dict[str, Any]:
    """Returns the JSON object that a line holds.

    Args:
        line: What came, from anybody.
        longest: How many bytes it may have.

    Raises:
        ValueError: It is too long, no UTF-8, no JSON, no object, nested too deeply, has a key twice, or holds what JSON
            cannot: NaN, an infinity, half of a surrogate pair.
    """
    if len(line) > longest:
        raise ValueError(f"the message has {len(line)} bytes, and may have {longest}")
    text = bytes(line).decode()
    try:
        found = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the message is no JSON object")
    _check_depth(found)
    if "\\u" in text:
        json.dumps(found, ensure_ascii=False).encode()  # Only so can a lone surrogate have come in.
    return found


def encoded(message: Mapping[str, Any]) -> bytes:
    """Returns a message as a line."""
    return json.dumps(message, allow_nan=False).encode() + b"\n"


def is_number(value: Any, least: int, below: int) -> bool:
    """Returns whether a value that came is an int from `least` to `below - 1`; a bool is none."""
    return type(value) is int and least <= value < below


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the message has a key twice in one object")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is no finite number")
    return number


def _check_depth(found: Any) -> None:
    layer = [found]
    for _ in range(_DEEPEST):
        items = [item.values() if isinstance(item, dict) else item for item in layer if isinstance(item, (dict, list))]
        layer = [value for values in items for value in values]
        if not layer:
            return
    raise ValueError(f"the message is nested more than {_DEEPEST} deep")
