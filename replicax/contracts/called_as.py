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
    # Editors and type checkers see its own signature.

    def decorate(fn: _F) -> _F:
        if inspect.isclass(fn):
            setattr(fn, "__init__", decorate(fn.__init__))  # noqa: B010 - a type checker does not let methods be set
            return fn

        translation = Translation(fn, tf_names)

        @functools.wraps(fn)
        def called(*args: object, **given: object) -> object:
            if len(args) > translation.places or not given.keys() <= translation.own:
                args, given = translation(args, given)
            return fn(*args, **given)

        called.translation = translation  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


class Translation:
    """How calls of a function with TensorFlow's parameters become its own; other calls need none."""

    def __init__(self, fn: Callable[..., object], tf_names: Sequence[str]):
        self.fn, self._tf_names = fn, tf_names
        parameters = inspect.signature(fn).parameters
        self.own = frozenset(parameters)
        self.places, self._owners = _places(parameters)

    def __call__(
        self, args: tuple[object, ...], given: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Returns the arguments of a call under their names here."""
        tf_name, (keywords, order) = self._tf_names[0], self.known
        if len(args) > self.places and order:  # It would be an error, so they are read in TensorFlow's order.
            args, given = args[: self._owners], _named(tf_name, order, args[self._owners :], given)
        if not given.keys() <= self.own and not keywords.keys().isdisjoint(given):
            given = _translated(tf_name, keywords, given)
        return args, given

    @functools.cached_property
    def known(self) -> tuple[Mapping[str, Keyword], Sequence[str]]:
        """TensorFlow's keywords and its order of parameters; they are loaded when a call may need them."""
        rows = [tensorflow_row(tf_name) for tf_name in self._tf_names]
        keywords = {name: keyword for row in rows for name, keyword in row.keywords.items()}
        return keywords, next((row.order for row in rows if row.order), ())


def translation_of(fn: object) -> Translation | None:
    """Returns how calls of a function are translated that `called_as` has decorated; None for any other."""
    return getattr(fn, "translation", None)


def tensorflow_keywords(fn: object) -> Mapping[str, Keyword]:
    """Returns what becomes of TensorFlow's keywords in calls of a function that `called_as` has decorated."""
    translation = translation_of(fn)
    return {} if translation is None else translation.known[0]


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
