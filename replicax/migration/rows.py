"""What a row of the table of TensorFlow's names is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["same", "renamed", "differs", "absent"]


class Keyword(NamedTuple):
    """What one keyword of TensorFlow's has become, where it is not a parameter of the same name here.

    Attributes:
        here: The parameter that takes its value; empty for one that is not here.
        note: Why it is not here, and what to do instead: a sentence with a full stop.
        accepted: Values without effect, such as TensorFlow's default; any other is refused. None: any value is taken.
    """

    here: str = ""
    note: str = ""
    accepted: tuple[Any, ...] | None = ()


class Row(NamedTuple):
    """What one name of TensorFlow has become.

    Attributes:
        kind: `"same"`: same name and meaning. `"renamed"`: another name, same meaning. `"differs"`: it is here, and
            behaves otherwise in what `note` says. `"absent"`: it is not here; `note` says why and what to do instead.
        here: Its name below `replicax`, such as `"Strategy.run"`; empty for what is absent.
        note: A sentence or two in Markdown, with a full stop; may be empty for `"same"` and `"renamed"`.
        keywords: TensorFlow's keywords that are not parameters of that name.
        order: TensorFlow's parameters in their order, where it is not the order here; empty where it is.
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
    """Returns the row of a name that means here what it means there."""
    return Row("same", here, note, keywords)


def renamed(here: str, note: str = "", **keywords: Keyword) -> Row:
    """Returns the row of what has another name here."""
    return Row("renamed", here, note, keywords)


def differs(here: str, note: str, **keywords: Keyword) -> Row:
    """Returns the row of what behaves otherwise here."""
    return Row("differs", here, note, keywords)


def absent(note: str) -> Row:
    """Returns the row of what is not here."""
    return Row("absent", "", note)


def to(here: str) -> Keyword:
    """Returns what a keyword with another name here has become."""
    return Keyword(here, f"It is `{here}` here.")


def refused(note: str, *accepted: Any) -> Keyword:
    """Returns what a keyword has become that is not here, with the values of it that change nothing."""
    return Keyword("", note, accepted)


def unused(note: str) -> Keyword:
    """Returns what a keyword has become that is accepted and changes nothing."""
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
    """Returns rows of names that behave otherwise, all in one way; the arguments as for `members`."""
    return {f"{prefix}.{name}": differs(f"{here}.{name}", note) for name in names.split()}


def absent_members(names: str, prefix: str, note: str) -> dict[str, Row]:
    """Returns rows of names that are not here, all for one reason; `names` as for `members`."""
    return {f"{prefix}.{name}": absent(note) for name in names.split()}
