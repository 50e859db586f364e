"""Enumerations whose members can be given by name."""

from __future__ import annotations

import enum
from typing import TypeVar

from replicax.errors import ArgumentError

Member = TypeVar("Member", bound=enum.Enum)


class Named(enum.Enum):
    """An enumeration of strings whose call with something else than a member or its value is an error of ours."""

    @classmethod
    def _missing_(cls, value: object) -> Named:
        names = ", ".join(repr(member.value) for member in cls)
        raise ArgumentError(f"rx.{cls.__name__} must be one of {names}, got {value!r:.100}. Write one of these.")


def member_of(kind: type[Member], value: object, what: str, error: type[Exception]) -> Member:
    """Returns a member of an enumeration of strings, given as itself or by its name in any case."""
    if isinstance(value, kind):
        return value
    try:
        return kind(str.lower(value))  # type: ignore[arg-type]  # its TypeError is caught
    except (TypeError, ValueError):
        names = ", ".join(repr(member.value) for member in kind)
        raise error(f"{what} must be one of {names}, got {value!r}.") from None
