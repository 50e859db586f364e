"""Finding what a function finds outside of its arguments, and how: by cells, globals, attributes and items."""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import itertools
import operator
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from replicax.typing import Leaf
from replicax.values.containers import is_value

_MAX_VISITED = 1_000
_MAX_SEARCHES = 4  # A step's own code is known after two or three; more are one of a library that is not listed here.
# pytest is one: it writes itself into the functions of tests, where they assert something.
_LIBRARIES = (
    "keras",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "flax",
    "equinox",
    "pytest",
    "_pytest",
    "replicax",
    "builtins",
)
#: A step's Python may decide by these; the program is right for the value, as for such arguments.
SETTINGS = (bool, int, float, complex, str, bytes, range, type(None), np.generic, enum.Enum)
_ALL_ITEMS = ("values", "items", "keys")
#: One step on the way to something: what to call, with what was found until now, and with what.
Step: TypeAlias = tuple[Callable[[Any, Any], Any], Any]


@dataclasses.dataclass(frozen=True)
class Found:
    """Something that a function can find."""

    where: str  # how code calls it, such as `"self.state['w']"`
    path: tuple[Step, ...]  # the way to it, from a tuple of the function and what else was looked into
    value: Leaf
    named: bool = False  # whether code of the function asks for it by this name, and not only for what holds it
    perhaps: bool = False  # whether the code may reach it: as an item of what it asks for, or by another name

    @property
    def rank(self) -> int:
        """How sure it is that the code asks for it."""
        return 2 if self.named else int(self.perhaps)

    @property
    def called(self) -> str:
        """Its name in code, `"state"`; "" where that may be anything, as for an item."""
        last = self.where.rpartition(".")[2]
        return last if last.isidentifier() else ""

    def part(self, value: Leaf, where: str, *steps: Step, named: bool = False, perhaps: bool = False) -> Found:
        """Returns something that is found by way of this."""
        return Found(where, (*self.path, *steps), value, named, perhaps)

    def item(self, value: Leaf, where: str, get: Callable[[Any, Any], Any], key: object, named: bool) -> Found:
        """Returns an item of this container, which the code may reach by a loop or a key that it computes."""
        return Found(self.where + where, (*self.path, (get, key)), value, self.named and named, self.rank > 0)


def found_outside(
    fn: object, objects: Sequence[object], stops: Callable[[object], bool], visited: list[object] | None = None
) -> list[Found]:
    """Returns what a function leads to: arrays, numbers and the like, containers of them, objects of libraries.

    All that is looked into on the way is added to `visited`.
    """
    # The functions that it calls, and the methods of objects, are looked into; functions of libraries are not, nor is
    # what `stops` is true of, which is found as it is. A path starts from `(fn, *objects)`.
    roots = [Found("", ((operator.getitem, 0),), fn)]
    for i, each in enumerate(objects, 1):
        roots.append(Found(f"{type(each).__name__}()", ((operator.getitem, i),), each, perhaps=True))
    reads, found = _Reads(), list[Found]()
    for _ in range(_MAX_SEARCHES):
        known, search = len(reads.codes), _Search(reads, stops)
        found = list(search.found(roots))
        if len(reads.codes) == known:  # Otherwise attributes were passed by that a function found later asks for.
            break
    if visited is not None:
        visited += [each.value for each in search.visited.values()]
    return found


def is_of_settings(value: object) -> bool:
    """Returns whether something is a list, tuple, set or dict of nothing but numbers, flags and strings."""
    if isinstance(value, dict):
        return all(isinstance(item, SETTINGS) for item in value.values())
    return (isinstance(value, (list, set, frozenset)) or type(value) is tuple) and all(
        isinstance(item, SETTINGS) for item in value
    )


class _Reads:
    """Names that the code of some functions asks for."""

    def __init__(self) -> None:
        self.codes: set[types.CodeType] = set()
        self._attributes: dict[str, set[str]] = {}
        self.strings: set[str] = set()
        #: Whether it may ask for attributes by names that it computes.
        self.computes_names = False

    def add(self, code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
        """Adds a function's code; returns the globals that it asks for, and the modules that it imports."""
        names, modules, attributes, strings = _read_by(code)
        self.codes.add(code)
        self.strings |= strings
        for owner, name in attributes:
            self._attributes.setdefault(name, set()).add(owner)
        self.computes_names |= "getattr" in names or "vars" in names or "__dict__" in self._attributes
        return names, modules

    def attribute(self, at: Found, name: str) -> bool:
        """Returns whether an attribute of something is asked for, by its own methods or by whoever calls it so."""
        owners = self._attributes.get(name, ())
        if not at.called or at.called in owners:
            return bool(owners)
        return "self" in owners and not _is_opaque(at.value)

    def perhaps(self, at: Found, name: str) -> bool:
        """Returns whether an attribute of something may be asked for: of a thing of another name, or by a string."""
        return at.rank > 0 and (self.computes_names or name in self._attributes or name in self.strings)

    def names(self) -> list[str]:
        """Returns the names of attributes that are asked for."""
        return list(self._attributes)

    def fills(self, at: Found) -> bool:
        """Returns whether code adds to a list or set of this name, and so does not depend on what is in it."""
        return any(at.called in self._attributes.get(name, ()) for name in ("append", "extend", "add"))


@functools.lru_cache(4_000)
def _read_by(
    code: types.CodeType, me: str = ""
) -> tuple[frozenset[str], frozenset[str], frozenset[tuple[str, str]], frozenset[str]]:
    """Returns globals that code asks for, modules that it imports, attributes with names of their owners, strings."""
    where = code.co_qualname.rpartition(".")[0]
    if where and not where.endswith("<locals>"):
        me = next(iter(code.co_varnames), "")
    names, modules, attributes, strings = set[str](), set[str](), set[tuple[str, str]](), set[str]()
    before: object = None
    for instruction in dis.get_instructions(code):
        kind, now = instruction.opname, instruction.argval
        if kind in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.add(now)
        elif kind in ("LOAD_ATTR", "LOAD_METHOD"):
            owner = before[-1] if isinstance(before, tuple) and before else before
            owner = owner if isinstance(owner, str) else ""
            attributes.add(("self" if owner == me else owner, now))
        elif kind == "IMPORT_NAME":
            modules.add(now)
        elif kind == "IMPORT_FROM":
            attributes.add(("", now))
        elif isinstance(now, str):
            strings.add(now)
        elif isinstance(now, types.CodeType):
            inner_names, inner_modules, inner_attributes, inner_strings = _read_by(now, me)
            names |= inner_names
            modules |= inner_modules
            attributes |= inner_attributes
            strings |= inner_strings
        before = now
    return frozenset(names), frozenset(modules), frozenset(attributes), frozenset(strings)


class _Search:
    def __init__(self, reads: _Reads, stops: Callable[[object], bool]):
        self._reads, self._stops = reads, stops
        self.visited: dict[int, Found] = {}  # by identity

    def found(self, roots: Sequence[Found]) -> Iterator[Found]:
        waiting = deque(roots)
        while waiting and len(self.visited) < _MAX_VISITED:
            each = waiting.popleft()
            if isinstance(each.value, SETTINGS) or is_value(each.value) or self._stops(each.value):
                yield each
            elif (before := self.visited.get(id(each.value))) is None or each.rank > before.rank:
                self.visited[id(each.value)] = each
                is_whole = each.rank > 0 and is_of_settings(each.value)
                is_watched = is_whole and not self._reads.fills(each)
                if is_watched or _is_opaque(each.value):
                    yield each
                elif isinstance(each.value, types.FunctionType):
                    # One of another name was put there, and another one may be. One that stays where it was defined
                    # may be given other code, as IPython does when a module has changed.
                    is_put = each.called not in ("", each.value.__name__)
                    is_sure = not is_put and not _is_library(each.value.__module__)
                    yield each.part(
                        each.value.__code__, each.where, (getattr, "__code__"), named=is_sure, perhaps=each.rank > 0
                    )
                parts = itertools.islice(self._parts(each), _MAX_VISITED)
                waiting.extend(part for part in parts if part.named or not is_whole)

    def _parts(self, at: Found) -> Iterator[Found]:
        value = at.value
        if isinstance(value, types.FunctionType):
            yield from self._parts_of_function(at, value)
        elif isinstance(value, types.MethodType):
            yield at.part(value.__self__, "self", (getattr, "__self__"), perhaps=True)
            yield at.part(value.__func__, "", (getattr, "__func__"))
        elif isinstance(value, functools.partial):
            yield at.part(value.func, "", (getattr, "func"))
            yield at.part(value.args, "args", (getattr, "args"), named=True)
            yield at.part(value.keywords, "keywords", (getattr, "keywords"), named=True)
        elif isinstance(value, weakref.ref):
            yield at.part(value(), "self", (_referent, None), perhaps=True)
        elif isinstance(value, tuple) and hasattr(value, "_fields"):
            for i, name in enumerate(value._fields):
                yield at.item(value[i], f".{name}", operator.getitem, i, self._reads.attribute(at, name))
        elif isinstance(value, (list, tuple, deque)):
            yield from self._length(at)
            for i, item in enumerate(value):
                yield at.item(item, f"[{i}]", operator.getitem, i, not isinstance(item, SETTINGS))
        elif isinstance(value, Mapping):
            yield from self._length(at)
            get = dict.get if isinstance(value, dict) else operator.getitem  # `get` puts nothing into a defaultdict
            for key, item in list(value.items()):
                yield at.item(item, f"[{key!r}]", get, key, not isinstance(key, str) or key in self._reads.strings)
            yield from self._attributes(at, getattr(value, "__dict__", {}))
        elif _wraps(value):  # what jax.jit, nnx.jit and functools.wraps return
            # One of a library that was put there under another name, such as `jnp.tanh` in a dict.
            is_put = at.rank > 0 and at.called != getattr(value, "__name__", "")
            yield at.part(value.__wrapped__, "", (getattr, "__wrapped__"), perhaps=is_put)
        elif isinstance(value, types.ModuleType):
            if not _is_library(value.__name__):
                yield from self._attributes(at, vars(value), named_only=True)
        elif isinstance(value, type):
            if not _is_of_library(value):
                inherited = (vars(base) for base in reversed(value.__mro__) if not _is_library(base.__module__))
                held = {name: each for attributes in inherited for name, each in attributes.items()}
                yield from self._attributes(at, held, named_only=True)
        else:
            yield from self._parts_of_object(at)

    def _length(self, at: Found) -> Iterator[Found]:
        """Yields how many items a container has, where the code may go through all of them."""
        # One that asks a dict for keys alone does not care for others.
        is_read = not isinstance(at.value, Mapping) or any(self._reads.perhaps(at, name) for name in _ALL_ITEMS)
        if at.rank and is_read and not self._reads.fills(at):
            yield at.part(len(at.value), at.where, (length_of, None), perhaps=True)

    def _parts_of_function(self, at: Found, fn: types.FunctionType) -> Iterator[Found]:
        is_own = not _is_library(fn.__module__)
        names, modules = self._reads.add(fn.__code__) if is_own else ((), ())
        for i, (name, cell) in enumerate(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)):
            if (content := content_of(cell)) is not _EMPTY:
                cells: Step = (getattr, "__closure__")
                yield at.part(content, name, cells, (operator.getitem, i), (getattr, "cell_contents"), named=is_own)
        for i, default in enumerate(fn.__defaults__ or ()):
            yield at.part(default, "default", (getattr, "__defaults__"), (operator.getitem, i), perhaps=is_own)
        for name, default in (fn.__kwdefaults__ or {}).items():
            yield at.part(default, name, (getattr, "__kwdefaults__"), (operator.getitem, name), named=is_own)
        if hasattr(fn, "__wrapped__"):
            yield at.part(fn.__wrapped__, "", (getattr, "__wrapped__"))
        elif is_own:
            yield from self._attributes(at, fn.__dict__, named_only=True)
        for name in names:
            if name in fn.__globals__:
                steps = (getattr, "__globals__"), (operator.getitem, name)
                yield at.part(fn.__globals__[name], name, *steps, named=True)
        for name in modules:
            if name in sys.modules:
                yield at.part(sys.modules[name], f"sys.modules[{name!r}]", (_module, name), perhaps=True)

    def _parts_of_object(self, at: Found) -> Iterator[Found]:
        kind: type = type(at.value)
        held, is_opaque = getattr(at.value, "__dict__", {}), _is_opaque(at.value)
        own = {name: value for name, value in held.items() if is_value(value)} if is_opaque else held
        yield from self._attributes(at, own)
        for name in self._reads.names():
            if name in own:
                continue
            named = self._reads.attribute(at, name)
            if name in held:
                if named or (at.rank and _is_of_user(kind)):
                    yield at.part(held[name], f"{at.where}.{name}", (getattr, name), named=named, perhaps=True)
            elif named or at.rank:
                yield from self._of_class(at, kind, name, named)
        for name in ("__call__", "call") if is_opaque else ("__call__",):
            yield from self._of_class(at, kind, name, named=True)
        if is_opaque:
            yield from _layers_of_users(at, held)

    def _of_class(self, at: Found, kind: type, name: str, named: bool) -> Iterator[Found]:
        """Yields what a class has for its objects: a method, a slot, a value for all of them."""
        here = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _EMPTY)
        if here is _EMPTY:
            return
        if isinstance(here, (types.FunctionType, property)) or _wraps(here):
            for i, base in enumerate(kind.__mro__):  # A method may call that of the class before it.
                if name in vars(base) and not _is_library(base.__module__):
                    yield from _method(at, base, name, (getattr, "__class__"), (getattr, "__mro__"), (_item, i))
        elif _is_opaque(at.value):
            return
        elif isinstance(here, types.MemberDescriptorType):
            if hasattr(at.value, name):
                value = getattr(at.value, name)
                yield at.part(value, f"{at.where}.{name}", (getattr, name), named=named, perhaps=True)
        elif not hasattr(type(here), "__get__"):
            yield at.part(here, f"{at.where}.{name}", (getattr, name), named=named, perhaps=True)

    def _attributes(self, at: Found, held: Mapping[str, Leaf], named_only: bool = False) -> Iterator[Found]:
        for name, value in list(held.items()):
            named, perhaps = self._reads.attribute(at, name), self._reads.perhaps(at, name)
            if named or not named_only or (perhaps and isinstance(value, SETTINGS) and name in self._reads.names()):
                yield at.part(value, f"{at.where}.{name}", (getattr, name), named=named, perhaps=perhaps)


def _method(at: Found, base: type, name: str, *steps: Step) -> Iterator[Found]:
    here = vars(base)[name]
    if isinstance(here, property):
        if here.fget is not None:
            yield at.part(here.fget, "", *steps, (getattr, name), (getattr, "fget"))
    elif isinstance(here, types.FunctionType) or _wraps(here):
        yield at.part(getattr(base, name), "", *steps, (getattr, name))


def _layers_of_users(at: Found, held: Mapping[str, Leaf]) -> Iterator[Found]:
    """Yields the objects of users' classes in lists of a library's object, such as the layers of a model."""
    for name, value in list(held.items()):
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                kind: type = type(item)
                if _is_of_user(kind) and _is_of_library(kind):
                    where = f"{at.where}.layers[{i}]"
                    yield at.part(item, where, (getattr, name), (_item, i), perhaps=True)


_EMPTY = object()


_item = operator.getitem


def content_of(cell: types.CellType) -> object:
    """Returns what a variable of an enclosing function holds."""
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _EMPTY


def length_of(container: Any, _: None) -> int:
    """Returns how many items a container has."""
    return len(container)


def _referent(reference: weakref.ref[Any], _: None) -> object:
    return reference()


def _module(_: object, name: str) -> types.ModuleType:
    return sys.modules[name]


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
    return not _wraps(value) and _is_of_library(kind)


def _wraps(value: object) -> bool:
    try:
        return hasattr(value, "__wrapped__")
    except Exception:  # A user's `__getattr__` may raise what it likes.
        return False


def _is_of_user(kind: type) -> bool:
    """Returns whether a user has written a class, perhaps after one of a library."""
    return not _is_library(kind.__module__)


@functools.cache
def _is_of_library(kind: type) -> bool:
    return _is_library(kind.__module__) or any(_root(base.__module__) in _LIBRARIES for base in kind.__mro__[:-1])
