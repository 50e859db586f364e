"""Finding what a function finds outside of its arguments, and how: by cells, globals, attributes and items."""

from __future__ import annotations

import dataclasses
import dis
import functools
import inspect
import itertools
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from replicax.containers import is_value
from replicax.typing import Leaf

_MAX_VISITED = 1_000
_LIBRARIES = ("keras", "jax", "jaxlib", "numpy", "optax", "flax", "replicax", "equinox", "builtins")
#: A step's Python may decide by these; the program is right for the value, as for such arguments.
SETTINGS = (bool, int, float, complex, str, type(None), np.generic)
#: One step on the way to something: what to call, with what was found until now, and with what.
Step: TypeAlias = tuple[Callable[[Any, Any], Any], Any]


@dataclasses.dataclass(frozen=True)
class Found:
    """Something that a function can find.

    Attributes:
        where: How code calls it, such as `"self.state['w']"`.
        path: The way to it, from a tuple of the function and whatever else was looked into.
        value: The thing.
        named: Whether code of the function asks for it by this name, and not only for something that holds it.
    """

    where: str
    path: tuple[Step, ...]
    value: Leaf
    named: bool = False

    @property
    def called(self) -> str:
        """Its name in code, `"state"`; "" where that may be anything, as for an item."""
        last = self.where.rpartition(".")[2]
        return last if last.isidentifier() else ""

    def part(self, value: Leaf, where: str, *steps: Step, named: bool = False) -> Found:
        """Returns something that is found by way of this."""
        return Found(where, (*self.path, *steps), value, named)


def found_outside(fn: object, objects: Sequence[object], stops: Callable[[object], bool]) -> list[Found]:
    """Returns what a function leads to: arrays, numbers and the like, objects of libraries.

    The functions that it calls, and the methods of objects, are looked into; functions of libraries are not.

    Args:
        fn: The function.
        objects: What else it looks into: arguments. A path starts from `(fn, *objects)`.
        stops: Tells what else is to be found; it is not looked into either.
    """
    roots = [Found("", ((operator.getitem, 0),), fn)]
    roots += [Found(f"{type(each).__name__}()", ((operator.getitem, i),), each) for i, each in enumerate(objects, 1)]
    reads = _Reads()
    while True:
        known = len(reads.codes)
        found = list(_Search(reads, stops).found(roots))
        if len(reads.codes) == known:  # Otherwise attributes were passed by that a function found later asks for.
            return found


class _Reads:
    """Names that the code of some functions asks for."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self._attributes: dict[str, set[str]] = {}
        self.strings: set[str] = set()

    def add(self, code: types.CodeType) -> frozenset[str]:
        """Adds a function's code; returns the globals that it asks for."""
        names, attributes, strings = _read_by(code)
        self.codes.add(code)
        self.strings |= strings
        for owner, name in attributes:
            self._attributes.setdefault(name, set()).add(owner)
        return names

    def attribute(self, at: Found, name: str) -> bool:
        """Returns whether an attribute of something is asked for, by its own methods or by whoever calls it so."""
        owners = self._attributes.get(name, ())
        if not at.called or at.called in owners:
            return bool(owners)
        return "self" in owners and not _is_opaque(at.value)

    def attributes(self, at: Found) -> list[str]:
        """Returns the attributes of something that are asked for."""
        return [name for name in self._attributes if self.attribute(at, name)]


@functools.lru_cache(4_000)
def _read_by(code: types.CodeType, me: str = "") -> tuple[frozenset[str], frozenset[tuple[str, str]], frozenset[str]]:
    """Returns the globals that code asks for, the attributes with the names of what has them, and its strings.

    Args:
        code: The code.
        me: How the method around it calls its object.
    """
    where = code.co_qualname.rpartition(".")[0]
    if where and not where.endswith("<locals>"):
        me = next(iter(code.co_varnames), "")
    names, attributes, strings = set[str](), set[tuple[str, str]](), set[str]()
    before: object = None
    for instruction in dis.get_instructions(code):
        kind, now = instruction.opname, instruction.argval
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(now)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = before[-1] if isinstance(before, tuple) and before else before
            owner = owner if isinstance(owner, str) else ""
            attributes.add(("self" if owner == me else owner, now))
        elif isinstance(now, str):
            strings.add(now)
        elif isinstance(now, types.CodeType):
            inner_names, inner_attributes, inner_strings = _read_by(now, me)
            names |= inner_names
            attributes |= inner_attributes
            strings |= inner_strings
        before = now
    return frozenset(names), frozenset(attributes), frozenset(strings)


class _Search:
    def __init__(self, reads: _Reads, stops: Callable[[object], bool]):
        self._reads, self._stops = reads, stops
        self._visited: dict[int, Found] = {}  # by identity

    def found(self, roots: Sequence[Found]) -> Iterator[Found]:
        waiting = deque(roots)
        while waiting and len(self._visited) < _MAX_VISITED:
            each = waiting.popleft()
            if isinstance(each.value, SETTINGS) or is_value(each.value) or self._stops(each.value):
                yield each
            elif (before := self._visited.get(id(each.value))) is None or (each.named and not before.named):
                self._visited[id(each.value)] = each
                if _is_opaque(each.value):
                    yield each
                waiting.extend(itertools.islice(self._parts(each), _MAX_VISITED))

    def _parts(self, at: Found) -> Iterator[Found]:
        value = at.value
        if isinstance(value, types.FunctionType):
            yield from self._parts_of_function(at, value)
        elif isinstance(value, types.MethodType):
            yield at.part(value.__self__, "self", (getattr, "__self__"))
            yield at.part(value.__func__, "", (getattr, "__func__"))
        elif isinstance(value, functools.partial):
            yield at.part(value.func, "", (getattr, "func"))
            yield at.part(value.args, "args", (getattr, "args"), named=True)
            yield at.part(value.keywords, "keywords", (getattr, "keywords"), named=True)
        elif isinstance(value, weakref.ref):
            yield at.part(value(), "self", (_referent, None))
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for i, name in enumerate(value._fields):
                named = at.named and self._reads.attribute(at, name)
                yield at.part(value[i], f"{at.where}.{name}", (operator.getitem, i), named=named)
        elif isinstance(value, (list, tuple, deque)):
            for i, item in enumerate(value):
                named = at.named and not isinstance(item, SETTINGS)
                yield at.part(item, f"{at.where}[{i}]", (operator.getitem, i), named=named)
        elif isinstance(value, Mapping):
            get = dict.get if isinstance(value, dict) else operator.getitem  # `get` puts nothing into a defaultdict
            for key, item in list(value.items()):
                named = at.named and (not isinstance(key, str) or key in self._reads.strings)
                yield at.part(item, f"{at.where}[{key!r}]", (get, key), named=named)
            yield from self._attributes(at, getattr(value, "__dict__", {}))
        elif hasattr(value, "__wrapped__"):  # what jax.jit, nnx.jit and functools.wraps return
            yield at.part(value.__wrapped__, "", (getattr, "__wrapped__"))
        elif isinstance(value, types.ModuleType):
            if not _is_library(value.__name__):
                yield from self._attributes(at, vars(value), named_only=True)
        elif isinstance(value, type):
            if not _is_of_library(value):
                yield from self._attributes(at, vars(value), named_only=True)
        else:
            yield from self._parts_of_object(at)

    def _parts_of_function(self, at: Found, fn: types.FunctionType) -> Iterator[Found]:
        is_own = not _is_library(fn.__module__)
        names = self._reads.add(fn.__code__) if is_own else ()
        for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
            if (content := _content(cell)) is not _EMPTY:
                yield at.part(content, name, (getattr, "__closure__"), (_in_cell, i), named=is_own)
        for i, default in enumerate(fn.__defaults__ or ()):
            yield at.part(default, "default", (getattr, "__defaults__"), (operator.getitem, i))
        for name, default in (fn.__kwdefaults__ or {}).items():
            yield at.part(default, name, (getattr, "__kwdefaults__"), (operator.getitem, name), named=is_own)
        if hasattr(fn, "__wrapped__"):
            yield at.part(fn.__wrapped__, "", (getattr, "__wrapped__"))
        for name in names:
            if name in fn.__globals__:
                steps = (getattr, "__globals__"), (operator.getitem, name)
                yield at.part(fn.__globals__[name], name, *steps, named=True)

    def _parts_of_object(self, at: Found) -> Iterator[Found]:
        kind: type = type(at.value)
        held, is_opaque = getattr(at.value, "__dict__", {}), _is_opaque(at.value)
        own = {name: value for name, value in held.items() if is_value(value)} if is_opaque else held
        yield from self._attributes(at, own)
        for name in self._reads.attributes(at):
            if name in own:
                continue
            if name in held:
                yield at.part(held[name], f"{at.where}.{name}", (getattr, name), named=True)
            elif not is_opaque:
                yield from self._of_class(at, kind, name)
        if not is_opaque:
            yield from self._of_class(at, kind, "__call__")

    def _of_class(self, at: Found, kind: type, name: str) -> Iterator[Found]:
        """Yields what a class has for its objects: a method, a slot, a value for all of them."""
        here = inspect.getattr_static(kind, name, _EMPTY)
        of_class = (getattr, "__class__"), (getattr, name)
        if isinstance(here, types.MemberDescriptorType):
            if hasattr(at.value, name):
                yield at.part(getattr(at.value, name), f"{at.where}.{name}", (getattr, name), named=True)
        elif isinstance(here, property) and here.fget is not None:
            yield at.part(here.fget, "", *of_class, (getattr, "fget"))
        elif isinstance(here, types.FunctionType) or hasattr(here, "__wrapped__"):
            yield at.part(getattr(kind, name), "", *of_class)
        elif here is not _EMPTY and not hasattr(type(here), "__get__"):
            yield at.part(here, f"{at.where}.{name}", (getattr, name), named=True)

    def _attributes(self, at: Found, held: Mapping[str, Leaf], named_only: bool = False) -> Iterator[Found]:
        for name, value in list(held.items()):
            named = self._reads.attribute(at, name)
            if named or not named_only:
                yield at.part(value, f"{at.where}.{name}", (getattr, name), named=named)


_EMPTY = object()


def _content(cell: types.CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def _in_cell(cells: tuple[types.CellType, ...], i: int) -> object:
    return cells[i].cell_contents


def _referent(reference: weakref.ref[Any], _: None) -> object:
    return reference()


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _is_library(module: str | None) -> bool:
    return _root(module) in _LIBRARIES or _root(module) in sys.stdlib_module_names


_LOOKED_INTO = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, weakref.ref, types.ModuleType,
    type, list, tuple, deque, Mapping, types.SimpleNamespace,
)  # fmt: skip


def _is_opaque(value: Leaf) -> bool:
    kind: type = type(value)
    if isinstance(value, _LOOKED_INTO):
        return _root(kind.__module__) in _LIBRARIES[:-1]  # such as the states of optax, which are tuples
    return not hasattr(value, "__wrapped__") and _is_of_library(kind)


@functools.cache
def _is_of_library(kind: type) -> bool:
    return _is_library(kind.__module__) or any(_root(base.__module__) in _LIBRARIES for base in kind.__mro__[:-1])
