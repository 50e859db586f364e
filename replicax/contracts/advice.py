"""The advice in the error for a name that TensorFlow, PyTorch or another library has and replicax does not.

The tables of these names are data of an upper room, `tensorflow/names`. They are loaded when a name is asked for that
does not exist, or a keyword is given that only TensorFlow has.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from replicax.contracts import upper_rooms
from replicax.errors import AbsentNameError

Kind = Literal["same", "renamed", "differs", "absent"]


class Keyword(NamedTuple):
    """The fate of a keyword of TensorFlow, if it is not a parameter of the same name here."""

    here: str = ""  # the parameter that takes its value; empty if there is none
    note: str = ""  # why there is none, and what to do instead: a sentence with a full stop
    # Values without effect, such as TensorFlow's default; any other is refused. None accepts any value.
    accepted: tuple[object, ...] | None = ()


class Row(NamedTuple):
    """The fate of a name of TensorFlow."""

    # `"same"`: same name and meaning. `"renamed"`: another name, same meaning. `"differs"`: it behaves differently, as
    # `note` says. `"absent"`: it does not exist; `note` says why and what to do instead.
    kind: Kind
    here: str = ""  # its name below `replicax`, such as `"Strategy.run"`; empty if it is absent
    note: str = ""  # Markdown, with a full stop; it may be empty for `"same"` and `"renamed"`
    keywords: Mapping[str, Keyword] = {}  # TensorFlow's keywords that are not parameters of that name
    order: tuple[str, ...] = ()  # of TensorFlow's parameters, if that differs from the order here

    def ordered(self, names: str) -> Row:
        """Returns the row with TensorFlow's order of parameters; the names are separated by spaces."""
        return self._replace(order=tuple(names.split()))


class NameTables(NamedTuple):
    """The tables of other libraries' names."""

    tensorflow: Mapping[str, Row]
    # By the name below `replicax` where a user looks for it: the library, its own name and the row.
    by_asked_name: Mapping[str, tuple[str, str, Row]]


@functools.cache
def _tables() -> NameTables:
    found: NameTables = upper_rooms.load(upper_rooms.NAME_TABLES)
    return found


def tensorflow_row(tf_name: str) -> Row:
    """Returns the row of a name of TensorFlow."""
    return _tables().tensorflow[tf_name]


def advice_for(owner: str, name: str) -> str | None:
    """Returns the advice for a name that `owner` (a class, or a module below `replicax`) lacks; None if unknown."""
    asked = f"{owner}.{name}" if owner else name
    found = _tables().by_asked_name.get(asked)
    if found is None:
        return None
    library, full_name, row = found
    if row.here == asked:
        return None  # It exists, but not on this object: for instance only instances have it.
    if row.here:
        return f"{library}'s {full_name} is rx.{row.here} here. {row.note}".rstrip()
    return f"{library}'s {full_name} is not in replicax. {row.note}".rstrip()


def not_found(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have, for the module's `__getattr__`."""
    advice = None if name.startswith("_") else advice_for(module.removeprefix("replicax").removeprefix("."), name)
    if advice is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules.get(module))
    return AbsentNameError(f"module {module!r}", name, advice)


def _raise_advice(cls: type, name: str, owner: str) -> None:
    if name.startswith("_"):
        return
    for base in cls.__mro__:
        advice = advice_for(base.__name__, name)
        if advice is not None:
            raise AbsentNameError(owner, name, advice)


class AdvisedType(type):
    """The type of classes that give advice for their own attributes, as in `rx.Variable.scatter_add`."""

    if not TYPE_CHECKING:  # For a type checker every attribute would exist.

        def __getattr__(cls, name: str) -> object:
            _raise_advice(cls, name, f"type object {cls.__name__!r}")
            return super().__getattribute__(name)


class AdvisedContractType(AdvisedType, abc.ABCMeta):
    """`AdvisedType` for abstract classes. (`isinstance` is slow there, so other classes do not use it.)"""


def advised_attribute(self: object, name: str) -> object:
    """Gives advice for an attribute that only TensorFlow's class of this name has: the `__getattr__` of a class."""
    _raise_advice(type(self), name, f"{type(self).__name__!r} object")
    return object.__getattribute__(self, name)  # Once more, for Python's own error or that of a property.


class Advised(metaclass=AdvisedType):
    """A class that gives advice, like its objects, for an attribute that only TensorFlow's class of this name has."""

    __slots__ = ()

    if not TYPE_CHECKING:
        __getattr__ = advised_attribute


class AdvisedContract(Advised, metaclass=AdvisedContractType):
    """`Advised` for abstract classes."""

    __slots__ = ()
