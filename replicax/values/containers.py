"""Containers that JAX does not know: dict and list subclasses, mappings, dataclasses and the like that hold arrays.

JAX flattens lists, tuples, named tuples, dicts and what is registered with it. Anything else is one leaf, whatever it
holds. `opened` puts the other containers into a form that JAX flattens too; unflattened they are what they were. A
container without arrays stays one leaf: it is a setting, which a program may be specialised to. Numbers of Python in
modules of Equinox are settings too (`settings_among`).
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import cast

import jax
import numpy as np

from replicax.errors import ArgumentError
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values.hints import NoArray

_MAX_VISITED = 10_000
_PLAIN = (str, int, float, bool, type(None))
_LIBRARIES = ("keras", "jax", "jaxlib", "replicax", "numpy")
_VALUES = (jax.Array, np.ndarray, NoArray)


def opened(tree: PyTree) -> PyTree:
    """Returns `tree` with the containers that JAX does not know, and that hold arrays, in a form that it flattens."""
    leaves, _ = flattened_by_jax(tree, is_leaf=is_value)
    return _opened(tree, ()) if _any_container(leaves) else tree


def flattened(
    tree: PyTree, is_leaf: Callable[[Leaf], bool] | None = None
) -> tuple[list[Leaf], jax.tree_util.PyTreeDef]:
    """Returns the leaves of a tree and its structure, also inside of containers of arrays that JAX does not know."""
    leaves, structure = flattened_by_jax(tree, is_leaf)
    if _any_container(leaves):
        return flattened_by_jax(_opened(tree, ()), is_leaf)
    return leaves, structure


def settings_among(leaves: Sequence[Leaf], tree: PyTree) -> frozenset[int]:
    """Returns which leaves are numbers of Python in modules of Equinox (`Dropout.p`), as positions."""
    # `eqx.filter_jit` takes them as settings that a program is made for, and so does replicax; they are no arrays.
    equinox = sys.modules.get("equinox")
    if equinox is None or not any(map(_is_setting, leaves)):  # Every argument of every call comes by here.
        return frozenset()
    found, start = set(), 0
    for node in jax.tree_util.tree_leaves(opened(tree), is_leaf=lambda node: isinstance(node, equinox.Module)):
        end = start + 1
        if isinstance(node, equinox.Module):
            end = start + len(jax.tree_util.tree_leaves(node))
            found |= {i for i in range(start, end) if _is_setting(leaves[i])}
        start = end
    return frozenset(found)


def _is_setting(leaf: Leaf) -> bool:
    return isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)  # as np.float64 is


def flattened_by_jax(
    tree: PyTree, is_leaf: Callable[[Leaf], bool] | None = None
) -> tuple[list[Leaf], jax.tree_util.PyTreeDef]:
    """Returns the leaves of a tree as JAX flattens it, and its structure."""
    try:
        return jax.tree_util.tree_flatten(tree, is_leaf)
    except ValueError as error:
        if "key" not in str(error):
            raise
        raise ArgumentError(
            "JAX flattens dicts in the order of their keys, so the keys of one dict must be of one type, such as "
            "strings."
        ) from error


def is_same_setting(one: object, other: object) -> bool:
    """Returns whether two settings are one to a program: 1 and 1.0 are two, and so are 0.0 and -0.0."""
    is_signed = isinstance(one, (float, complex, np.inexact))
    return type(one) is type(other) and bool(one == other) and (not is_signed or repr(one) == repr(other))


def walked(value: object) -> Iterator[tuple[str, Leaf]]:
    """Yields what an object holds, at any depth, and the object itself, each with where it was: `".state['x']"`."""
    # Models, variables, modules and types are not looked into.
    visited: set[int] = set()
    waiting = collections.deque([("", value)])
    while waiting and len(visited) < _MAX_VISITED:
        where, each = waiting.popleft()
        yield where, each
        if id(each) not in visited and not _is_opaque(each):
            visited.add(id(each))
            waiting.extend((where + step, child) for step, child in _parts(each))


def found_in(value: object, is_wanted: Callable[[Leaf], bool]) -> str | None:
    """Returns where in an object something is found first; None if nowhere. See `walked`."""
    return next((where for where, each in walked(value) if is_wanted(each)), None)


def holds_values(value: object) -> bool:
    """Returns whether there are arrays or per-replica values in an object."""
    return found_in(value, is_value) is not None


def is_value(value: object) -> bool:
    """Returns whether `value` is an array or a per-replica value."""
    return isinstance(value, _VALUES)


def _opened(tree: PyTree, inside: tuple[int, ...]) -> PyTree:
    def open_leaf(leaf: Leaf) -> Leaf:
        if not _is_container(leaf) or not holds_values(leaf):
            return leaf
        if id(leaf) in inside:
            raise _cannot(type(leaf), "It contains itself.")
        opener = _opener(_class_of(leaf))
        assert opener is not None
        shell, children = opener(leaf)
        return _Opened(shell, [_opened(child, (*inside, id(leaf))) for child in children])

    return jax.tree_util.tree_map(open_leaf, tree, is_leaf=is_value)


@dataclasses.dataclass(frozen=True, eq=False)
class _Shell:
    """A container without what it holds: what makes one of its kind."""

    kind: type
    names: Hashable  # keys and attributes of what it holds; indices of a sequence
    settings: tuple[tuple[str, Leaf], ...]  # fixed attributes: two shells that differ in them are two structures
    make: Callable[[Sequence[Leaf]], Leaf]  # unflattens it

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Shell)
            and (self.kind, self.names) == (other.kind, other.names)
            and len(self.settings) == len(other.settings)
            and all(map(_is_same, self.settings, other.settings))
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.names))


@jax.tree_util.register_pytree_node_class
class _Opened:
    """A container that JAX flattens, and unflattens as what it was."""

    def __init__(self, shell: _Shell, children: Sequence[Leaf]):
        self.shell, self.children = shell, children

    def tree_flatten(self) -> tuple[Sequence[Leaf], _Shell]:
        return self.children, self.shell

    @classmethod
    def tree_unflatten(cls, shell: _Shell, children: Sequence[Leaf]) -> Leaf:
        return shell.make(children)


def _is_same(one: tuple[str, Leaf], other: tuple[str, Leaf]) -> bool:
    (name, a), (other_name, b) = one, other
    return name == other_name and (a is b or is_same_setting(a, b))


# The kinds of containers.


_Flattened = tuple["_Shell", list[Leaf]]


@functools.cache
def _opener(kind: type) -> Callable[[Leaf], _Flattened] | None:
    """Returns what flattens a class of containers; None for anything else."""
    if kind is types.MappingProxyType:
        return _open_view
    for base, opener in _OPENERS.items():
        if issubclass(kind, base):
            return opener
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or issubclass(kind, types.SimpleNamespace):
        return _open_record
    return None


def _is_container(leaf: Leaf) -> bool:
    return _opener(_class_of(leaf)) is not None


def _open_dict(items: Leaf) -> _Flattened:
    # The container that unflattens holds no arrays: they would be the first step's batch.
    put: Callable[[Leaf, Leaf, Leaf], None] = (
        collections.OrderedDict.__setitem__ if isinstance(items, collections.OrderedDict) else dict.__setitem__
    )
    keys, default = tuple(items), isinstance(items, collections.defaultdict) and items.default_factory

    def fill(new: Leaf, children: Sequence[Leaf]) -> None:
        if default:
            new.default_factory = default
        for key, child in zip(keys, children, strict=True):
            put(new, key, child)

    return _flat(items, keys, [items[key] for key in keys], fill)


def _open_list(items: Leaf) -> _Flattened:
    return _flat(items, range(len(items)), list(items), list.extend)


def _open_deque(items: Leaf) -> _Flattened:
    longest = items.maxlen
    fill = lambda new, children: collections.deque.__init__(new, children, longest)  # noqa: E731
    return _flat(items, range(len(items)), list(items), fill)


def _open_tuple(items: Leaf) -> _Flattened:
    return _flat(items, range(len(items)), list(items), _nothing, tuple.__new__)


def _open_view(items: Leaf) -> _Flattened:
    keys, kind = tuple(items), type(items)
    return _Shell(kind, keys, (), lambda children: kind(dict(zip(keys, children, strict=True)))), list(items.values())


def _open_chain(items: Leaf) -> _Flattened:
    keys = tuple(items)

    def fill(new: Leaf, children: Sequence[Leaf]) -> None:
        new.maps = [dict(zip(keys, children, strict=True))]

    return _flat(items, keys, list(items.values()), fill, without=("maps",))


def _open_record(record: Leaf) -> _Flattened:
    held = dict(_attributes(record))
    declared = dataclasses.fields(record) if dataclasses.is_dataclass(record) else ()
    fixed = [field.name for field in declared if field.metadata.get("static") and field.name in held]
    names = [name for name in held if name not in fixed]
    return _flat(record, (), [], _nothing, children_among=names)


def _flat(
    container: Leaf,
    keys: Sequence[Leaf],  # what tells its items apart
    items: list[Leaf],
    fill: Callable[[Leaf, Sequence[Leaf]], None],  # puts items into a new one
    create: PyTreeFunction | None = None,  # from its class and the items; by default `__new__` without arguments
    without: Sequence[str] = (),  # attributes that hold the items
    children_among: Sequence[str] | None = None,  # attributes that may change; by default those that hold arrays
) -> _Flattened:
    """Returns a flattened container: its items, and its attributes."""
    kind: type = type(container)
    number = len(items)
    held = {name: value for name, value in _attributes(container) if name not in without}
    if children_among is None:
        children_among = [name for name, value in held.items() if holds_values(value)]
    order = tuple(held)
    changing = {name: held.pop(name) for name in children_among}
    names = tuple(changing)

    def make(children: Sequence[Leaf]) -> Leaf:
        try:
            new = cast(Leaf, kind).__new__(kind) if create is None else create(kind, children[:number])
        except TypeError as error:
            raise _cannot(kind, f"{kind.__name__}.__new__ wants arguments.") from error
        values = held | dict(zip(names, children[number:], strict=True))
        for name in order:
            object.__setattr__(new, name, values[name])  # also of a frozen one
        fill(new, children[:number])
        return new

    if not number and not any(map(holds_values, changing.values())):
        raise _cannot(kind, "Its arrays are in none of its attributes.")
    every = held.items() if not number else [item for item in held.items() if isinstance(item[1], _PLAIN)]
    settings = tuple(sorted(every, key=lambda item: item[0]))
    return _Shell(kind, (tuple(keys), names), settings, make), [*items, *changing.values()]


def _nothing(new: Leaf, children: Sequence[Leaf]) -> None:
    """Puts in no items: there are none, or they are there."""


def _cannot(kind: type, why: str) -> ArgumentError:
    name = kind.__name__
    return ArgumentError(
        f"An object of class {name} that holds arrays went into or came out of a compiled function, which cannot "
        f"flatten it. {why} "
        f"Use a dict, list, tuple or dataclass, or register {name} with JAX (jax.tree_util.register_pytree_node)."
    )


def _open_attributes(items: Leaf) -> _Flattened:
    return _flat(items, (), [], _nothing)


_OPENERS: dict[type, Callable[[Leaf], _Flattened]] = {
    dict: _open_dict,
    tuple: _open_tuple,
    list: _open_list,
    collections.deque: _open_deque,
    collections.ChainMap: _open_chain,
    Mapping: _open_attributes,  # of attributes, such as `UserDict.data`
    collections.UserList: _open_attributes,
}


def _any_container(leaves: Sequence[Leaf]) -> bool:
    return any(map(_opener, set(map(type, leaves))))  # Every argument of every call comes by here.


def _class_of(value: object) -> type:
    return type(value)


# Looking into objects.


def _is_opaque(value: object) -> bool:
    if isinstance(value, (*_PLAIN, bytes, type, types.ModuleType, *_VALUES)):
        return True
    return _is_of_library(_class_of(value))


@functools.cache
def _is_of_library(kind: type) -> bool:
    return any(base.__module__.partition(".")[0] in _LIBRARIES for base in kind.__mro__)


def _parts(value: object) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", value[key]) for key in value)
    elif isinstance(value, (list, tuple, collections.UserList, collections.deque)):
        yield from ((f"[{i}]", child) for i, child in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from (("{...}", child) for child in value)
    elif isinstance(value, functools.partial):
        yield from (("(...)", child) for child in (value.func, *value.args, *value.keywords.values()))
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, types.FunctionType):
        yield from _captured(value)
    yield from ((f".{name}", child) for name, child in _attributes(value))


def _captured(fn: types.FunctionType) -> Iterator[tuple[str, Leaf]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        try:
            yield f" with captured {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((" with a default", default) for default in fn.__defaults__ or ())


def _attributes(value: object) -> Iterator[tuple[str, Leaf]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for base in type(value).__mro__:
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)
