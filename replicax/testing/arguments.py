"""Arguments from a test to its workers: plain data as JSON. There is no pickle, so reading them runs no code."""

from __future__ import annotations

from pathlib import Path

from replicax.errors import ArgumentError

_PATH, _TUPLE = "__path__", "__tuple__"


def encoded(name: str, value: object) -> object:
    """Returns a value in a form that JSON can hold; `decoded` restores paths and tuples too."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return {_PATH: str(value)}
    if isinstance(value, tuple):
        return {_TUPLE: [encoded(name, item) for item in value]}
    if isinstance(value, list):
        return [encoded(name, item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: encoded(f"{name}[{key!r}]", item) for key, item in value.items()}
    raise ArgumentError(
        f"`{name}` is a {type(value).__name__}, which cannot go to the workers' processes: numbers, strings, paths, "
        "and lists, tuples and dicts of them can. Make it inside of the function, or write it to a file in tmp_path "
        "and pass the path."
    )


def decoded(value: object) -> object:
    """Returns the value that `encoded` has encoded."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_PATH}:
        return Path(value[_PATH])
    if value.keys() == {_TUPLE}:
        return tuple(decoded(item) for item in value[_TUPLE])
    return {key: decoded(item) for key, item in value.items()}
