"""Calls with TensorFlow's keywords: what has another name here is passed on, what is not here is refused."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from replicax.errors import ArgumentError
from replicax.migration.names import NAMES
from replicax.migration.rows import Keyword

_F = TypeVar("_F", bound=Callable[..., Any])


def called_as(*tf_names: str) -> Callable[[_F], _F]:
    """Lets a function, or a class, be called with the keywords in the rows of TensorFlow's names.

    Its own signature stays what it is for an editor and a type checker. A call without such a keyword costs one look
    at the keywords.

    Args:
        *tf_names: The names whose rows have the keywords.
    """
    keywords = {name: keyword for tf_name in tf_names for name, keyword in NAMES[tf_name].keywords.items()}

    def decorate(fn: _F) -> _F:
        if inspect.isclass(fn):
            setattr(fn, "__init__", decorate(fn.__init__))  # noqa: B010 - a type checker does not let methods be set
            return fn

        @functools.wraps(fn)
        def called(*args: Any, **given: Any) -> Any:
            if given and not keywords.keys().isdisjoint(given):
                given = _translated(tf_names[0], keywords, given)
            return fn(*args, **given)

        called.tensorflow_keywords = keywords  # type: ignore[attr-defined]
        return called  # type: ignore[return-value]

    return decorate


def _translated(tf_name: str, keywords: Mapping[str, Keyword], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of a call as they are called here.

    Raises:
        ArgumentError: One is refused, or is given under both names.
    """
    passed: dict[str, Any] = {}
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


def _is_same(value: Any, known: Any) -> bool:
    """Compares without asking an array whether it is true."""
    return value is known or (type(value) is type(known) and bool(value == known))
