"""How the tables write the rows of their names."""

from __future__ import annotations

from collections.abc import Mapping

from replicax.contracts.advice import Keyword, Row

Rows = Mapping[str, Row]


def same(here: str, note: str = "", **keywords: Keyword) -> Row:
    """Returns the row of a name with the same meaning."""
    return Row("same", here, note, keywords)


def renamed(here: str, note: str = "", **keywords: Keyword) -> Row:
    """Returns the row of something that has another name here."""
    return Row("renamed", here, note, keywords)


def differs(here: str, note: str, **keywords: Keyword) -> Row:
    """Returns the row of something that behaves differently here."""
    return Row("differs", here, note, keywords)


def absent(note: str) -> Row:
    """Returns the row of something that does not exist here."""
    return Row("absent", "", note)


def to(here: str) -> Keyword:
    """Returns the entry of a keyword that has another name here."""
    return Keyword(here, f"It is `{here}` here.")


def refused(note: str, *accepted: object) -> Keyword:
    """Returns the entry of a keyword that does not exist here, with its values that have no effect."""
    return Keyword("", note, accepted)


def unused(note: str) -> Keyword:
    """Returns the entry of a keyword that is accepted and has no effect."""
    return Keyword("", note, None)


def members(here: str, names: str, prefix: str) -> dict[str, Row]:
    """Returns rows of kind "same" for names, separated by spaces, from `prefix` in TensorFlow to `here` in replicax."""
    return {f"{prefix}.{name}": same(f"{here}.{name}".lstrip(".")) for name in names.split()}


def differing(here: str, names: str, prefix: str, note: str) -> dict[str, Row]:
    """Returns rows of names that all behave differently in the same way; the arguments are those of `members`."""
    return {f"{prefix}.{name}": differs(f"{here}.{name}", note) for name in names.split()}


def absent_members(names: str, prefix: str, note: str) -> dict[str, Row]:
    """Returns rows of names that do not exist here, all for one reason; `names` are those of `members`."""
    return {f"{prefix}.{name}": absent(note) for name in names.split()}
