"""Enumerations whose members may be given by their names."""

from __future__ import annotations

import enum
from typing import Any, TypeVar

Member = TypeVar("Member", bound=enum.Enum)


def member_of(kind: type[Member], value: Any, what: str, error: type[Exception]) -> Member:
    """Returns the member of an enumeration of strings that `value` is or names, in any case.

    Args:
        kind: The enumeration.
        value: One of its members, or the name of one.
        what: What to call it in the message.
        error: What to raise if it is neither.
    """
    if isinstance(value, kind):
        return value
    try:
        return kind(str.lower(value))
    except (TypeError, ValueError):
        names = ", ".join(repr(member.value) for member in kind)
        raise error(f"{what} is one of {names}, got {value!r}.") from None
