"""Calls with TensorFlow's parameters: renamed ones are translated, missing ones are refused."""

from __future__ import annotations

import enum
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from replicax.contracts.advice import Keyword, tensorflow_row
from replicax.errors import ArgumentError

_F = TypeVar("_F", bound=Callable[..., object])


def called_as(*tf_names: str) -> Callable[[_F], _F]:
    """Decorates a function or a class so that it accepts the parameters in the rows of TensorFlow's names."""
    # Editors and type checkers see its own signature. If a call has too many positional arguments, which would be an
    # error, they are read in TensorFlow's order. Any other call costs one look at the keywords; the tables are loaded
    # where one is not its own.

    @functools.cache
    def known() -> tuple[Mapping[str, Keyword], Sequence[str]]:
        """Returns TensorFlow's keywords and its order of parameters; they are loaded when a call may need them."""
        rows = [tensorflow_row(tf_name) for tf_name in tf_names]
        keywords = {name: keyword for row in rows for name, keyword in row.keywords.items()}
        return keywords, next((row.order for row in rows if row.order), ())

    def decorate(fn: _F) -> _F:
        if inspect.isclass(fn):
            setattr(fn, "__init__", decorate(fn.__init__))  # noqa: B010 - a type checker does not let methods be set
            return fn

        parameters = inspect.signature(fn).parameters
        (places, owners), own = _places(parameters), frozenset(parameters)

        @functools.wraps(fn)
        def called(*args: object, **given: object) -> object:
            if len(args) > places and known()[1]:
                args, given = args[:owners], _named(tf_names[0], known()[1], args[owners:], given)
            if not given.keys() <= own and not known()[0].keys().isdisjoint(given):
                given = _translated(tf_names[0], known()[0], given)
            return fn(*args, **given)

        called.tensorflow_keywords = known  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


def tensorflow_keywords(fn: object) -> Mapping[str, Keyword]:
    """Returns what becomes of TensorFlow's keywords in calls of a function that `called_as` has decorated."""
    known = getattr(fn, "tensorflow_keywords", None)
    return {} if known is None else known()[0]


def _places(parameters: Mapping[str, inspect.Parameter]) -> tuple[int, int]:
    """Returns how many positional arguments these parameters take, and how many of them are the owner (`self`)."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [each.name for each in parameters.values() if each.kind in kinds]
    return len(found), int(found[:1] in (["self"], ["cls"]))


def _named(
    tf_name: str, order: Sequence[str], args: Sequence[object], given: Mapping[str, object]
) -> dict[str, object]:
    """Returns positional arguments as TensorFlow's keywords, together with the given keywords."""
    if len(args) > len(order):
        raise ArgumentError(f"{tf_name} takes at most {len(order)} arguments ({', '.join(order)}), got {len(args)}.")
    named = dict(zip(order, args, strict=False))
    twice = named.keys() & given.keys()
    if twice:
        raise ArgumentError(f"{tf_name} got {', '.join(sorted(twice))} twice: by place and by name.")
    return {**named, **given}


def _translated(tf_name: str, keywords: Mapping[str, Keyword], given: Mapping[str, object]) -> dict[str, object]:
    """Returns the keywords of a call under their names here."""
    passed: dict[str, object] = {}
    for name, value in given.items():
        keyword = keywords.get(name)
        if keyword is None:
            passed[name] = value
        elif keyword.here:
            if keyword.here in given:
                raise ArgumentError(
                    f"`{name}` is TensorFlow's name for `{keyword.here}`, and both were given. Give one of them."
                )
            passed[keyword.here] = value
        elif keyword.accepted is not None and not any(_is_same(value, known) for known in keyword.accepted):
            raise ArgumentError(f"{tf_name} has `{name}`, which is not in replicax, got {value!r:.100}. {keyword.note}")
    return passed


def _is_same(value: object, known: object) -> bool:
    """Compares two values without the truth value of an array; a member of an enumeration counts as its value."""
    if isinstance(value, enum.Enum):
        value = value.value
    return value is known or (type(value) is type(known) and bool(value == known))
