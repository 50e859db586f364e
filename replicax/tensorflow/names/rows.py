"""The rows of the table of TensorFlow's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Kind = Literal["same", "renamed", "differs", "absent"]


class Keyword(NamedTuple):
    """The fate of a keyword of TensorFlow, if it is not a parameter of the same name here.

    Attributes:
        here: The parameter that takes its value; empty if there is none.
        note: Why there is none, and what to do instead: a sentence with a full stop.
        accepted: Values without effect, such as TensorFlow's default; any other is refused. None accepts any value.
    """

    here: str = ""
    note: str = ""
    accepted: tuple[object, ...] | None = ()


class Row(NamedTuple):
    """The fate of a name of TensorFlow.

    Attributes:
        kind: `"same"`: same name and meaning. `"renamed"`: another name, same meaning. `"differs"`: it exists and
            behaves differently, as `note` says. `"absent"`: it does not exist; `note` says why and what to do instead.
        here: Its name below `replicax`, such as `"Strategy.run"`; empty if it is absent.
        note: A sentence or two in Markdown, with a full stop; it may be empty for `"same"` and `"renamed"`.
        keywords: TensorFlow's keywords that are not parameters of that name.
        order: TensorFlow's parameters in their order, if that differs from the order here; otherwise empty.
    """

    kind: Kind
    here: str = ""
    note: str = ""
    keywords: Mapping[str, Keyword] = {}
    order: tuple[str, ...] = ()

    def ordered(self, names: str) -> Row:
        """Returns the row with TensorFlow's order of parameters; the names are separated by spaces."""
        return self._replace(order=tuple(names.split()))


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
    """Returns rows of kind "same" for names of a class or module.

    Args:
        here: Where they are below `replicax`; empty for `replicax` itself.
        names: The names, separated by spaces.
        prefix: Where TensorFlow has them.
    """
    return {f"{prefix}.{name}": same(f"{here}.{name}".lstrip(".")) for name in names.split()}


def differing(here: str, names: str, prefix: str, note: str) -> dict[str, Row]:
    """Returns rows of names that all behave differently in the same way; the arguments are those of `members`."""
    return {f"{prefix}.{name}": differs(f"{here}.{name}", note) for name in names.split()}


def absent_members(names: str, prefix: str, note: str) -> dict[str, Row]:
    """Returns rows of names that do not exist here, all for one reason; `names` are those of `members`."""
    return {f"{prefix}.{name}": absent(note) for name in names.split()}
