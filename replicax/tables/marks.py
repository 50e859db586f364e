"""Marks of the variables of embedding tables, by which parameter servers know them.

A table and the slots of its optimizer are marked with the table's spec: only rows that a step looks up change. A
growing table has an index beside it, which says whose row each is; the index is marked with its table. An initializer
may bring the mark of the variable that is made with it, so that the mark is there when the variable gets its place.
"""

from __future__ import annotations

from typing import TypeVar

_TABLE, _INDEX = "_replicax_table", "_replicax_index_of"
_BROUGHT = {"replicax_table": _TABLE, "replicax_index_of": _INDEX}
_Initializer = TypeVar("_Initializer")


def mark_as_table(variable: object, spec: object) -> None:
    """Notes that a variable is a table, or has a row for each row of one; `spec` says which."""
    vars(variable)[_TABLE] = spec


def for_index_of(table: object, initializer: _Initializer) -> _Initializer:
    """Returns the initializer with the mark of the index of a growing table."""
    vars(initializer)["replicax_index_of"] = table
    return initializer


def take_marks(variable: object, initializer: object) -> None:
    """Gives a variable the marks that its initializer brings."""
    for brought, mark in _BROUGHT.items():
        value = getattr(initializer, brought, None)
        if value is not None:
            vars(variable)[mark] = value


def is_table(variable: object) -> bool:
    """Returns whether a variable is a table, or has a row for each row of one."""
    return spec_of(variable) is not None


def spec_of(variable: object) -> object | None:
    """Returns the spec of the table that a variable is, or has a row for each row of; None for others."""
    spec: object | None = vars(variable).get(_TABLE)
    return spec


def grows(variable: object) -> bool:
    """Returns whether a variable is a growing table, or a slot of one."""
    return eviction_of(variable) is not None


def eviction_of(variable: object) -> str | None:
    """Returns whose rows a growing table takes when none is free; None for other variables."""
    eviction: str | None = getattr(spec_of(variable), "evict", None)
    return eviction


def index_of(variable: object) -> object | None:
    """Returns the growing table whose index a variable is; None for others."""
    table: object | None = vars(variable).get(_INDEX)
    return table
