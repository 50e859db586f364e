"""The mark of a variable that is an embedding table, or a slot of its optimizer."""

from __future__ import annotations

_VARIABLE_MARK, _INITIALIZER_MARK = "_replicax_table", "replicax_table"


def mark_as_table(variable: object, spec: object) -> None:
    """Notes that a variable is a table, or has a row for each row of one; `spec` says which."""
    vars(variable)[_VARIABLE_MARK] = spec


def is_table(variable: object) -> bool:
    """Returns whether a variable is a table, or has a row for each row of one."""
    return vars(variable).get(_VARIABLE_MARK) is not None


def mark_of_initializer(initializer: object) -> object | None:
    """Returns the spec of the table that an initializer is for; None for most."""
    spec: object | None = getattr(initializer, _INITIALIZER_MARK, None)
    return spec
