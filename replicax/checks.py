"""Checks of arguments: each returns the value, or says the rule, the offending value and what is allowed."""

from __future__ import annotations

import inspect
import math
import numbers
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard, TypeVar

import numpy as np

from replicax.errors import ArgumentError, ReplicaxError

_T = TypeVar("_T")


def is_int(value: object) -> TypeGuard[int]:
    """Returns whether `value` is an integer; a bool is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Returns whether `value` is a real number; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def checked_int(
    name: str, value: object, *, least: int = 0, note: str = "", error: type[ReplicaxError] = ArgumentError
) -> int:
    """Returns `value` as an int.

    Args:
        name: The argument's name.
        value: What was given.
        least: The smallest that is allowed.
        note: What the message adds to the rule, such as `", or None to choose one"`.
        error: The class of the error.

    Raises:
        ReplicaxError: `value` is no integer of at least `least`; of the class `error`.

    Example:
        >>> checked_int("prefetch", 2)
        2
    """
    if not is_int(value) or value < least:
        raise error(f"`{name}` must be an int of at least {least}{note}, got {value!r:.100}.")
    return int(value)


def checked_seconds(
    name: str,
    value: object,
    *,
    zero: bool = False,
    infinite: bool = False,
    note: str = "",
    error: type[ReplicaxError] = ArgumentError,
) -> float:
    """Returns `value`, a time in seconds, as a float.

    Args:
        name: The argument's name.
        value: What was given.
        zero: Whether it may be 0.
        infinite: Whether it may be infinite.
        note: What the message adds to the rule.
        error: The class of the error.

    Raises:
        ReplicaxError: `value` is no such number; of the class `error`.
    """
    fits = is_real(value) and (value > 0 or (zero and value == 0)) and (infinite or math.isfinite(value))
    if not fits:
        rule = "a number of seconds of at least 0" if zero else "a positive number of seconds"
        raise error(f"`{name}` must be {rule}{note}, got {value!r:.100}.")
    assert is_real(value)
    return float(value)


ARGS = " In `args` each item is one argument: a batch that is a tuple is args=(batch,)."


def explain_misfit(
    name: str, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], hint: str = ARGS
) -> None:
    """Says what is wrong with a call `fn(*args, **kwargs)` of a user's function if its arguments do not fit.

    A step calls it after a `TypeError`: to compare a function with its arguments takes longer than to call it.

    Raises:
        ArgumentError: `fn` does not take these arguments.
    """
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):  # A builtin may have none.
        return
    try:
        parameters.bind(*args, **kwargs)
    except TypeError as problem:
        given = [type(each).__name__ for each in args] + [f"{key}=" for key in kwargs]
        raise ArgumentError(
            f"`{name}` takes {parameters!s:.200}, and was called with ({', '.join(given)}): {problem}. Write it with "
            f"parameters for these.{hint}"
        ) from None


def call(
    name: str,
    fn: Callable[..., _T],
    args: Sequence[object],
    kwargs: Mapping[str, object] = types.MappingProxyType({}),
    hint: str = "",
) -> _T:
    """Returns what a user's function returns.

    Raises:
        ArgumentError: `fn` cannot be called, or does not take these arguments.
    """
    if not callable(fn):
        raise ArgumentError(f"`{name}` must be callable, got {type(fn).__name__}: {fn!r:.100}.")
    try:
        return fn(*args, **kwargs)
    except TypeError:
        explain_misfit(name, fn, args, kwargs, hint)
        raise
