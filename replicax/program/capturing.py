"""Finding what a function has captured: cells, defaults, the object that it is a method of, the globals it names."""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping

from replicax.typing import Leaf

_MAX_VISITED = 1_000
_LIBRARIES = ("keras", "jax", "jaxlib", "numpy", "optax", "flax", "replicax", "equinox", "builtins")


@dataclasses.dataclass(frozen=True)
class Captured:
    """Something that a function has captured.

    Attributes:
        name: Its name there.
        holder: The cell, or the dict of attributes or globals, that holds it.
        value: The thing.
    """

    name: str
    holder: types.CellType | Mapping[str, object] | None
    value: Leaf

    def changed(self) -> bool:
        """Returns whether the function would find something else there now."""
        if isinstance(self.holder, types.CellType):
            return self.holder.cell_contents is not self.value
        return self.holder is not None and self.holder.get(self.name) is not self.value


def captured_by(fn: object, is_wanted: Callable[[object], bool]) -> Iterator[Captured]:
    """Yields what a function has captured, also by the functions that it calls and the objects whose methods it calls.

    Args:
        fn: The function. Functions of libraries are not looked into.
        is_wanted: Tells what is to be found; it is not looked into either.
    """
    visited: set[int] = set()
    waiting = [Captured(getattr(fn, "__name__", "step"), None, fn)]
    while waiting and len(visited) < _MAX_VISITED:
        each = waiting.pop(0)
        if id(each.value) in visited:
            continue
        visited.add(id(each.value))
        if is_wanted(each.value):
            yield each
        else:
            waiting.extend(_parts(each.value))


def _parts(value: Leaf) -> Iterator[Captured]:
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield Captured("self", None, value.__self__)
        yield Captured(value.__name__, None, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (Captured(f"args[{i}]", None, part) for i, part in enumerate((value.func, *value.args)))
        yield from (Captured(name, value.keywords, part) for name, part in value.keywords.items())
    elif isinstance(value, (list, tuple, set)):
        yield from (Captured(f"[{i}]", None, part) for i, part in enumerate(value))
    elif isinstance(value, dict):
        yield from (Captured(str(name), None, part) for name, part in value.items())
    elif hasattr(value, "__wrapped__"):  # what jax.jit, nnx.jit and functools.wraps return
        yield Captured(getattr(value, "__name__", "step"), None, value.__wrapped__)
    elif not _is_opaque(value):
        attributes = getattr(value, "__dict__", {})
        yield from (Captured(name, attributes, part) for name, part in attributes.items())


def _parts_of_function(fn: types.FunctionType) -> Iterator[Captured]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if (content := _content(cell)) is not _EMPTY:
            yield Captured(name, cell, content)
    yield from (Captured("default", None, default) for default in fn.__defaults__ or ())
    yield from (Captured(name, fn.__kwdefaults__, part) for name, part in (fn.__kwdefaults__ or {}).items())
    if hasattr(fn, "__wrapped__"):
        yield Captured(fn.__name__, None, fn.__wrapped__)
    if not _is_library(fn.__module__):
        names = dict.fromkeys(_names_in(fn.__code__))
        yield from (Captured(name, fn.__globals__, fn.__globals__[name]) for name in names if name in fn.__globals__)


_EMPTY = object()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_library(module: str | None) -> bool:
    root = (module or "").partition(".")[0]
    return root in _LIBRARIES or root in sys.stdlib_module_names


def _is_opaque(value: Leaf) -> bool:
    kind: type = type(value)
    return isinstance(value, (type, types.ModuleType)) or _is_of_library(kind)


@functools.cache
def _is_of_library(kind: type) -> bool:
    return _is_library(kind.__module__) or any(_is_library(base.__module__) for base in kind.__mro__[:-1])
