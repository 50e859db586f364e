"""Messages about weights without a variable, and variables without a weight."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from replicax.contracts.variable_access import VariableLike, name_of, shape_of

_NEAREST, _SHOWN = 3, 10


class Entry(NamedTuple):
    """A tensor of a file."""

    name: str  # in the file
    label: str  # the name, with that of the layer that wrote it, if the file has it
    shape: tuple[int, ...]
    dtype: np.dtype | None = None  # only if it is known not to be a dtype of numbers


def complaints(
    path: str,
    wrong: Sequence[tuple[VariableLike, Entry]],
    without: Sequence[VariableLike],
    left: Mapping[str, Entry],
    variables: Sequence[VariableLike],
    stored: Mapping[str, Entry],
) -> str:
    """Returns what is wrong with a file that does not fit a model, with what is nearest on the other side."""
    lines = [f"{path} does not fit the model; nothing has changed."]
    lines += [_misfit(variable, entry) for variable, entry in wrong[:_SHOWN]]
    lines += [
        f"Variable {_shown(variable)} finds no weight in the file. Nearest: "
        f"{_listed(_near(variable, list(left.values()) or list(stored.values())))}."
        for variable in without[:_SHOWN]
    ]
    lines += [
        f"Weight {entry.label!r} {entry.shape} of the file finds no variable. Nearest: "
        f"{', '.join(map(_shown, _near_variables(entry, without or variables))) or 'none'}."
        for entry in list(left.values())[:_SHOWN]
    ]
    more = sum(max(0, len(found) - _SHOWN) for found in (wrong, without, left))
    return "\n".join([*lines, *([f"And {more} more."] if more else [])])


def _misfit(variable: VariableLike, entry: Entry) -> str:
    if entry.dtype is not None:
        return (
            f"Variable {name_of(variable)!r} takes numbers, and its weight {entry.label!r} has dtype {entry.dtype}. "
            "Store the numbers themselves; bfloat16 in HDF5 has dtype V2 and an attribute dtype='bfloat16'."
        )
    return (
        f"Variable {name_of(variable)!r} has shape {shape_of(variable)}, and its weight {entry.label!r} has shape "
        f"{entry.shape}."
    )


def _shown(variable: VariableLike) -> str:
    return f"{name_of(variable)!r} {shape_of(variable)}"


def _listed(entries: Sequence[Entry]) -> str:
    return ", ".join(f"{entry.label!r} {entry.shape}" for entry in entries) or "none"


def _near(variable: VariableLike, entries: Sequence[Entry]) -> list[Entry]:
    def distance(entry: Entry) -> tuple[bool, float]:
        return entry.shape != shape_of(variable), -_likeness(name_of(variable), entry.label)

    return sorted(entries, key=distance)[:_NEAREST]


def _near_variables(entry: Entry, variables: Sequence[VariableLike]) -> list[VariableLike]:
    def distance(variable: VariableLike) -> tuple[bool, float]:
        return entry.shape != shape_of(variable), -_likeness(name_of(variable), entry.label)

    return sorted(variables, key=distance)[:_NEAREST]


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()
