"""Checks manifests against the fields that an API has."""

from __future__ import annotations

from typing import Any


def faults(value: Any, schema: Any, where: str = "") -> list[str]:
    """Returns where `value` is not of `schema`: a type, a set of values, a list of one kind, or a mapping of fields."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where} is no mapping"]
        unknown = [f"{where}.{name} is unknown" for name in value.keys() - schema.keys()]
        return unknown + [fault for name in value.keys() & schema for fault in faults(value[name], schema[name], name)]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where} is no list"]
        return [fault for item in value for fault in faults(item, schema[0], where)]
    if isinstance(schema, set):
        return [] if value in schema else [f"{where} is {value!r}"]
    return [] if type(value) is schema else [f"{where} is {value!r}"]
