"""Checks of a user's function, and of the arguments for it, before it is called."""

from __future__ import annotations

import inspect
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView

from replicax.checks import ARGS, call
from replicax.errors import ArgumentError
from replicax.program.hints.foreign import check_no_foreign_function, check_no_tensor
from replicax.typing import PyTree, PyTreeFunction


def checked_call(name: str, fn: object, args: PyTree, kwargs: PyTree) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    """Returns the arguments of a call `fn(*args, **kwargs)` to come, checked; messages call `fn` by `name`."""
    check_function(f"`{name}`", fn)
    return checked_arguments(args, kwargs)


def checked_arguments(args: PyTree, kwargs: PyTree) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
    """Returns the arguments of a call to come, checked."""
    if not isinstance(args, (list, tuple)):
        raise ArgumentError(f"`args` must be a list or tuple of arguments, got {type(args).__name__}. One: args=(x,).")
    if kwargs is None:
        return tuple(args), {}
    if not isinstance(kwargs, Mapping) or not all(isinstance(key, str) for key in kwargs):
        raise ArgumentError(
            f"`kwargs` must be a dict of arguments by name, got {kwargs!r:.100}. Arguments without a name go to `args`."
        )
    return tuple(args), dict(kwargs)


def called(name: str, fn: PyTreeFunction, args: PyTree, kwargs: PyTree, first: PyTree) -> PyTree:
    """Returns `fn(first, *args, **kwargs)`, with the arguments checked."""
    args, kwargs = checked_call(name, fn, args, kwargs)
    return call(name, fn, (first, *args), kwargs, ARGS)


def check_function(what: str, fn: object) -> None:
    """Checks that `fn` can be called and runs when it is: it is not `async`, a generator or a `tf.function`."""
    if not callable(fn):
        raise ArgumentError(f"{what} must be callable, got {type(fn).__name__}: {fn!r}.")
    check_no_foreign_function(what, fn)
    for each in (fn, getattr(type(fn), "__call__", None)):  # noqa: B004 - an object may have an `async` one
        if inspect.iscoroutinefunction(each) or inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ArgumentError(
                f"{what} must be an ordinary function, got {fn!r}, which is `async` or has `yield`: a call would run "
                "none of it. Write it with `def`, and return the values instead of yielding them."
            )


def check_result(result: PyTree) -> None:
    """Checks that a function's result, or a leaf of it, is neither still to run nor a tensor of another library."""
    if inspect.iscoroutine(result):
        result.close()  # or Python warns that nobody has awaited it
    elif not inspect.isgenerator(result) and not inspect.isasyncgen(result) and not _is_lazy(result):
        check_no_tensor(result, "returned")
        return
    raise ArgumentError(
        f"The function returned {result!r:.200}, of which nothing has run. A step is an ordinary function (`def`) that "
        "returns values: call no `async` function in it, and make a list of what a generator, `map` or `zip` yields, "
        "or of `dict.values()`."
    )


def _is_lazy(result: PyTree) -> bool:
    """Returns whether something of Python's own gives its values later: `map`, `iter(list)`, `dict.values()`, ..."""
    lazy = isinstance(result, (Iterator, KeysView, ValuesView, ItemsView))
    return lazy and type(result).__module__ in ("builtins", "itertools")
