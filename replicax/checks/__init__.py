"""Checks of arguments: each returns the value, or says the rule, the offending value and what is allowed."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
import numbers
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeGuard, TypeVar, cast

from replicax.errors import ArgumentError, ReplicaxError

if TYPE_CHECKING:
    import jax

_T = TypeVar("_T")


def is_int(value: object) -> TypeGuard[int]:
    """Returns whether `value` is an integer; a bool is none."""
    return isinstance(value, (int, numbers.Integral)) and not isinstance(value, bool)


def is_real(value: object) -> TypeGuard[float]:
    """Returns whether `value` is a real number; a bool is none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def checked_int(
    name: str, value: object, *, least: int = 0, note: str = "", error: type[ReplicaxError] = ArgumentError
) -> int:
    """Returns `value` as an int of at least `least`; in the message `note` goes on with this rule.

    Example:
        >>> checked_int("prefetch", 2)
        2
    """
    if not is_int(value) or value < least:
        raise error(f"`{name}` must be an int of at least {least}{note}, got {value!r:.100}.")
    return int(value)


def checked_seconds(name: str, value: object, *, zero: bool = False, infinite: bool = False, note: str = "") -> float:
    """Returns `value`, a time in seconds, as a float."""
    fits = is_real(value) and (value > 0 or (zero and value == 0)) and (infinite or math.isfinite(value))
    if not fits:
        rule = "a number of seconds of at least 0" if zero else "a positive number of seconds"
        raise ArgumentError(f"`{name}` must be {rule}{note}, got {value!r:.100}.")
    assert is_real(value)
    return float(value)


ARGS = " In `args` each item is one argument: a batch that is a tuple is args=(batch,)."


def checked_array(name: str, value: object) -> jax.Array:
    """Returns `value` as an array of numbers."""
    import jax.numpy as jnp  # Only here: a launcher checks its options, too, and needs no JAX.

    try:
        return jnp.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, OverflowError):
            raise  # One of ours, or what JAX says of a tracer.
        raise ArgumentError(
            f"`{name}` must be an array of numbers or a number, got {value!r:.100}. Give one of NumPy's or JAX's."
        ) from None


def explain_misfit(
    name: str, fn: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], hint: str = ARGS
) -> None:
    """Says what is wrong with a call `fn(*args, **kwargs)` of a user's function if its arguments do not fit."""
    # A step calls it after a `TypeError`: to compare a function with its arguments takes longer than to call it.
    if isinstance(sys.exception(), ReplicaxError):
        return  # It has said more already, and `args` may be what it refuses.
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
    """Returns what a user's function returns."""
    if not callable(fn):
        raise ArgumentError(f"`{name}` must be callable, got {type(fn).__name__}: {fn!r:.100}.")
    try:
        return fn(*args, **kwargs)
    except TypeError:
        explain_misfit(name, fn, args, kwargs, hint)
        raise


_C = TypeVar("_C", bound=Callable[..., object])


def checked(named: _C) -> _C:
    """Decorates a public function or class: its arguments are compared with the annotations of its parameters.

    Example:
        >>> @checked
        ... def repeated(word: str, times: int | None = None) -> str:
        ...     return word * (times or 1)
        >>> try:
        ...     repeated("no", times="two")
        ... except ArgumentError as error:
        ...     print(error)
        `times` of repeated must be an int or None, got 'two'. See help(repeated).
    """
    # The function itself checks what annotations leave open (a range, a length); a type that exists for type checkers
    # only is taken as it comes. It costs some microseconds a call, so steps do without it.
    return _with_annotations(named, before=True)


def explained(named: _C) -> _C:
    """Explains an error that is not ours, where a function has checks of its own and says more in them.

    Example:
        >>> @explained
        ... def repeated(word: str, times: int = 1) -> str:
        ...     return word * times
        >>> try:
        ...     repeated("no", "two")
        ... except ArgumentError as error:
        ...     print(error)
        `times` of repeated must be an int, got 'two'. See help(repeated).
    """
    return _with_annotations(named, before=False)


def _with_annotations(named: _C, before: bool) -> _C:
    if not inspect.isclass(named):
        return cast("_C", _comparing(named, named.__name__, before))
    setattr(named, "__init__", _comparing(named.__init__, named.__name__, before))  # noqa: B010 - no new method
    return cast("_C", named)


def _comparing(function: Callable[..., _T], shown: str, before: bool) -> Callable[..., _T]:
    signature = inspect.signature(function)
    rules: dict[str, tuple[_Rule, ...]] = {}
    names: dict[str, object] = getattr(inspect.unwrap(function), "__globals__", {})

    def compare(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return  # Python says what is missing, or too much.
        for name, value in given.items():
            parameter = signature.parameters[name]
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or value is parameter.default:
                continue
            if name not in rules:
                rules[name] = _rules_of(parameter.annotation, names)
            if not any(rule.fits(value) for rule in rules[name]):
                allowed = " or ".join(dict.fromkeys(rule.words for rule in rules[name]))
                raise ArgumentError(
                    f"`{name}` of {shown} must be {allowed}, got {value!r:.100}. See help({shown})."
                ) from None

    @functools.wraps(function)
    def comparing(*args: object, **kwargs: object) -> _T:
        if before:
            compare(args, kwargs)
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except ReplicaxError:
            raise
        except Exception:
            compare(args, kwargs)
            raise

    return comparing


class _Rule(NamedTuple):
    """A kind of values: a test, and its words for a message."""

    fits: Callable[[object], bool]
    words: str


def _is_sequence(value: object) -> bool:
    return hasattr(value, "__len__") and hasattr(value, "__getitem__") and not isinstance(value, (str, bytes, Mapping))


def _is_number(value: object) -> bool:
    if _is_truth_value(value) or isinstance(value, (str, bytes, complex)):
        return False
    return hasattr(value, "__float__") and _has_no_dimensions(value) and not math.isnan(value)


def _is_index(value: object) -> bool:
    return hasattr(value, "__index__") and not _is_truth_value(value) and _has_no_dimensions(value)


def _is_flag(value: object) -> bool:
    return _is_truth_value(value) or (is_int(value) and value in (0, 1))


def _is_truth_value(value: object) -> bool:
    import numpy as np

    return isinstance(value, (bool, np.bool_))


def _has_no_dimensions(value: Any) -> bool:
    import numpy as np

    return np.ndim(value) == 0


def _first_items(value: Any) -> list[object]:
    """Returns items to look at; those of an iterator are not taken."""
    try:
        return list(itertools.islice(value, 100)) if hasattr(value, "__len__") else []
    except TypeError:  # An array without dimensions.
        return []


_ANYTHING = _Rule(lambda value: True, "anything")
_KINDS: Mapping[object, _Rule] = {
    int: _Rule(_is_index, "an int"),
    float: _Rule(_is_number, "a number"),
    bool: _Rule(_is_flag, "True or False"),
    str: _Rule(lambda value: isinstance(value, str), "a str"),
    type(None): _Rule(lambda value: value is None, "None"),
    Sequence: _Rule(_is_sequence, "a sequence"),
    Iterable: _Rule(lambda value: hasattr(value, "__iter__") or _is_sequence(value), "an iterable"),
    Mapping: _Rule(lambda value: isinstance(value, Mapping), "a mapping"),
    Callable: _Rule(callable, "a function"),
}


def _rules_of(annotation: object, names: Mapping[str, object]) -> tuple[_Rule, ...]:
    """Returns the rules of which a value must meet one; an annotation that means nothing here allows all."""
    if annotation is inspect.Parameter.empty:
        return (_ANYTHING,)
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        # Each alternative by itself: some are types that only a type checker has.
        parts = [part for part in _alternatives(annotation) if part != annotation]
        if parts:
            return tuple(rule for part in parts for rule in _rules_of(part, names))
        try:
            return _rules_of(eval(annotation, dict(names)), names)
        except (NameError, AttributeError, TypeError):
            return (_ANYTHING,)
    origin, parts = typing.get_origin(annotation), list(typing.get_args(annotation))
    if origin in (types.UnionType, typing.Union):
        return tuple(rule for part in parts for rule in _rules_of(part, names))
    if origin is Annotated:
        return _rules_of(parts[0], names)
    kind = annotation if origin is None else origin
    if kind is None:
        kind = type(None)
    if typing.is_typeddict(kind):
        kind = Mapping
    if kind in (Sequence, Iterable) and parts and all(part in (int, float, str) for part in parts):
        whole, each = _KINDS[kind], _KINDS[parts[0]]
        words = f"{whole.words}, each item {each.words}"
        return (_Rule(lambda value: whole.fits(value) and all(map(each.fits, _first_items(value))), words),)
    if kind in _KINDS:
        return (_KINDS[kind],)
    if not inspect.isclass(kind) or kind in (object, Any):
        return (_ANYTHING,)
    own = kind
    if typing.Protocol in own.__bases__:
        parts = [part for part in (*vars(own), *inspect.get_annotations(own)) if not part.startswith("_")]
        words = f"an object with {' and '.join(map(repr, parts))}"
        return (_Rule(lambda value: all(hasattr(value, part) for part in parts), words),)
    return (_Rule(lambda value: isinstance(value, own), f"a {own.__name__}"),)


def _alternatives(annotation: str) -> list[str]:
    found, todo = [], [ast.parse(annotation, mode="eval").body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            todo += [node.right, node.left]
        else:
            found.append(ast.unparse(node))
    return found
