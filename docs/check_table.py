"""Checks that each public name of TensorFlow has a row, and that the row is true: `python docs/check_table.py`.

The names are in `tests/golden/tf_names.txt`, the rows in `replicax/tensorflow/names/`. A row is true if the name that
it gives is there and takes TensorFlow's keywords (or has a row that says why not), and if asking for a name that is not
here is answered with its advice.
"""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import replicax as rx
from replicax.contracts.advice import AdvisedType
from replicax.contracts.called_as import tensorflow_keywords
from replicax.errors import AbsentNameError
from replicax.tensorflow.names import NAMES, Row, asked_as, resolved

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "golden" / "tf_names.txt"
# What the note of a row begins with if arguments without names mean something else here.
_OTHER_ORDER = "Other order of parameters: "
_LINE = re.compile(r"^(?P<name>[\w.]+)(?P<call>\((?P<arguments>[^)]*)\))?(?P<settable> =)?( : (?P<base>[\w.]+))?$")
_ATTRIBUTES = re.compile(r"^ *Attributes:\n(?P<listed>.*?)(?=^ *$|\Z)", re.MULTILINE | re.DOTALL)


class Name(NamedTuple):
    """A public name of TensorFlow's.

    Attributes:
        name: The whole name.
        arguments: The names of its parameters, those in front first; None if it cannot be called.
        base: The class whose members it has too.
        settable: Whether it is a property that can be set.
    """

    name: str
    arguments: tuple[str, ...] | None
    base: str | None
    settable: bool

    def keywords(self) -> list[str]:
        """Returns the names that can be used as keywords."""
        listed = list(self.arguments or ())
        positional = listed.index("/") + 1 if "/" in listed else 0
        return [argument for argument in listed[positional:] if not argument.startswith("*")]


def names() -> list[Name]:
    """Returns TensorFlow's names."""
    found = []
    for line in LIST.read_text().splitlines():
        if line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None:
            raise ValueError(f"{LIST} has a line that cannot be read: {line!r}")
        listed = [part.strip().removesuffix("=") for part in (match["arguments"] or "").split(",") if part.strip()]
        arguments = tuple(listed) if match["call"] else None
        found.append(Name(match["name"], arguments, match["base"], bool(match["settable"])))
    return found


def faults(name: Name) -> Iterator[str]:
    """Yields what is wrong with the row of a name."""
    row = NAMES.get(name.name)
    if row is None:
        yield "it has no row"
        return
    there = asked(asked_as(name.name))
    if row.kind == "absent":
        if there is not None:
            yield f"its row says that it is not here, and rx.{asked_as(name.name)} is"
        return
    if not is_there(row.here):
        yield f"its row says that it is rx.{row.here}, which is not there"
        return
    if is_called(name, row):
        yield from faults_of_keywords(name, row)
    yield from faults_of_setter(name, row)
    yield from faults_of_base(name, row)


def asked(path: str) -> Any:
    """Returns what is found below `replicax`; None if the answer was advice.

    Raises:
        AttributeError: Neither the one nor the other.
    """
    found: Any = rx
    for part in path.split("."):
        if inspect.isclass(found) and is_documented(found, part):
            return part  # An instance has it.
        try:
            found = getattr(found, part)
        except AbsentNameError:
            if inspect.isclass(found) and not isinstance(found, AdvisedType):
                raise AttributeError(f"An object of {found} gives no advice about {part!r}.") from None
            return None
    return found


def is_there(here: str) -> bool:
    """Returns whether a name below `replicax` stands for something: also an attribute that only instances have."""
    owner, _, member = here.rpartition(".")
    holder = resolved(rx, Row("same", owner)) if owner else rx
    if inspect.isclass(holder) and is_documented(holder, member):
        return True
    return resolved(rx, Row("same", here)) is not None


def is_called(name: Name, row: Row) -> bool:
    """Returns whether a name is called here: under its own name, perhaps in another module, and not under a new one."""
    if name.arguments is None or row.kind == "absent":
        return False
    owns_its_name = row.here.rpartition(".")[2] == name.name.rpartition(".")[2]
    return owns_its_name or asked(asked_as(name.name)) is not None


def is_documented(cls: type, attribute: str) -> bool:
    """Returns whether the docstring of a class or of a base lists an attribute."""
    sections = [_ATTRIBUTES.search(base.__doc__ or "") for base in cls.__mro__]
    return any(f" {attribute}: " in section["listed"] for section in sections if section is not None)


def faults_of_keywords(name: Name, row: Row) -> Iterator[str]:
    """Yields what is wrong with the keywords of a name."""
    if name.arguments is None:
        if row.keywords:
            yield "its row has keywords, and it cannot be called"
        return
    if inspect.isabstract(resolved(rx, row)):
        return  # Nobody calls it.
    there = function_of(row)
    own = parameters(there)
    answered = tensorflow_keywords(there)
    for keyword in name.keywords():
        if keyword in row.keywords:
            known = row.keywords[keyword]
            if known.here and known.here not in own:
                yield f"its row says that {keyword} is {known.here}, which rx.{row.here} has not"
            if answered.get(keyword) is None:
                yield f"rx.{row.here} does not know what its row says of the keyword {keyword}"
        elif keyword not in own:
            yield f"rx.{row.here} has no keyword {keyword}, and the row says nothing of it"
    yield from faults_of_order(name, row, own)
    for cls, method in overrides(row):
        taken = {*parameters(method), *tensorflow_keywords(method)}
        for keyword in set(name.keywords()) - taken:
            yield f"{cls.__module__}.{cls.__name__} overrides rx.{row.here} without the keyword {keyword}"
    for keyword in row.keywords.keys() - set(name.keywords()):
        yield f"its row has a keyword {keyword}, which TensorFlow has not"


def faults_of_order(name: Name, row: Row, own: list[str]) -> Iterator[str]:
    """Yields what is wrong where arguments without names would be taken for others."""
    theirs = list(itertools.takewhile(lambda argument: not argument.startswith("*"), name.arguments or ()))
    if "/" in theirs or row.note.startswith(_OTHER_ORDER):
        return
    if row.order:
        if list(row.order) != theirs:
            yield f"its row has the order {row.order}, TensorFlow {theirs}"
        return
    here = [row.keywords[argument].here if argument in row.keywords else argument for argument in theirs]
    if own[: len(here)] != here:
        yield f"TensorFlow has the parameters {theirs}, rx.{row.here} {own}, and the row has no order"


def faults_of_setter(name: Name, row: Row) -> Iterator[str]:
    """Yields what is wrong if a name can be set in TensorFlow and not here."""
    if not name.settable:
        return
    there = resolved(rx, row)
    if not (isinstance(there, property) and there.fset is not None):
        yield f"it can be set, and rx.{row.here} cannot"


def faults_of_base(name: Name, row: Row) -> Iterator[str]:
    """Yields what is wrong if a class has not the members of what is a base in TensorFlow."""
    if name.base is None:
        return
    base = NAMES[name.base]
    if base.kind != "absent" and not issubclass(resolved(rx, row), resolved(rx, base)):
        yield f"rx.{row.here} is no rx.{base.here}"


def function_of(row: Row) -> Any:
    """Returns what is called by the name of a row: for a class, what makes its objects."""
    there = resolved(rx, row)
    if not inspect.isclass(there):
        return there
    return there.__new__ if there.__init__ is object.__init__ and "__new__" in vars(there) else there.__init__


def overrides(row: Row) -> Iterator[tuple[type, Any]]:
    """Yields the classes of replicax that have a method of their own where a row's class has it, with the method."""
    owner, _, member = row.here.rpartition(".")
    todo = [resolved(rx, Row("same", owner))] if owner else []
    while todo:
        cls = todo.pop()
        if inspect.isclass(cls):
            todo += type.__subclasses__(cls)
            if member in vars(cls) and cls.__module__.startswith("replicax.") and cls.__name__ != owner:
                yield cls, getattr(cls, member)


def parameters(fn: Callable[..., Any]) -> list[str]:
    """Returns the names that can be used as keywords of a function."""
    if isinstance(fn, property) or not callable(fn):
        return []
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = [each.name for each in inspect.signature(fn).parameters.values() if each.kind in kinds]
    return found[1:] if found[:1] in (["self"], ["cls"], ["_cls"]) else found


def main() -> int:
    """Prints what is wrong; returns the exit code."""
    wrong = 0
    for name in names():
        for fault in _found(name):
            wrong += 1
            print(f"{name.name}: {fault}")
    known = names()
    print(f"RESULT names {len(known)}")
    print(f"RESULT names_wrong {wrong}")
    print(f"RESULT names_without_row {sum(name.name not in NAMES for name in known)}")
    return 1 if wrong else 0


def _found(name: Name) -> list[str]:
    try:
        return list(faults(name))
    except AttributeError as error:
        return [str(error)]


if __name__ == "__main__":
    sys.exit(main())
