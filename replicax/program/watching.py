"""Whether a function still finds, outside of its arguments, the things that its program was made with."""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from replicax.containers import is_value
from replicax.program.capturing import SETTINGS, Found, found_outside
from replicax.program.flax_modules import is_of_flax
from replicax.typing import Leaf
from replicax.values import PerReplica

_WAY = object()
_COMPARED = 1024  # bytes of a NumPy array, which may be changed in place; more would take too long before each step


class Watched:
    """The things that a function found outside of its arguments, or in objects among them, for a program.

    Watched are arrays that the program uses, wherever they are; and arrays, numbers and objects of libraries that the
    function's code asks for by name. Values that are computed from elsewhere are out of reach.

    Args:
        fn: The function.
        objects: The arguments that are no arrays.
        constants: The arrays that the program has captured.
    """

    def __init__(self, fn: object, objects: Sequence[Leaf], constants: Iterable[Leaf]):
        found = found_outside(fn, objects, is_of_flax)
        uses = _Used(constants)
        named = {id(_array_of(each.value)) for each in found if each.named}
        #: From which of the things found before, how, what must be found (or `_WAY` to something), and its name.
        self._looks: list[tuple[int, Callable[[Any, Any], Any], Any, object, str]] = []
        self._places: dict[tuple[int, Callable[[Any, Any], Any], Any], int] = {}
        for each in found:
            # A thing that has a name is not watched at other places, too.
            used = uses(each.value)
            if each.named or (used and id(_array_of(each.value)) not in named) or is_of_flax(each.value):
                self._watch(each, used)

    def _watch(self, found: Found, used: bool) -> None:
        wanted = _wanted(found.value, used)
        if wanted is _WAY:
            return
        place = 0
        for get, key in found.path:
            at = (place, get, key)
            if at not in self._places:
                self._looks.append((*at, _WAY, found.where))
                self._places[at] = len(self._looks)
            place = self._places[at]
        self._looks[place - 1] = (*self._looks[place - 1][:3], wanted, found.where)

    def changed(self, get_fn: Callable[[], object], objects: Sequence[tuple[int, Leaf]]) -> str | None:
        """Returns what is another one now than then, such as `"self.w"`; None if nothing is."""
        looks = self._looks
        if not looks:
            return None
        found: list[Any] = [(get_fn(), *[leaf for _, leaf in objects]) if objects else (get_fn(),)]
        where = ""
        try:
            for place, get, key, wanted, where in looks:
                now = get(found[place], key)
                found.append(now)
                if now is not wanted and wanted is not _WAY and not _is_same(wanted, now):
                    return where
        except (AttributeError, LookupError, TypeError, ValueError):  # It is not there any more, or cannot have it.
            return where
        return None


class _Used:
    """Tells whether a program has captured an array, or one in a pytree of a library."""

    def __init__(self, constants: Iterable[Leaf]):
        self._arrays, self._memory = set(), set()
        for each in constants:
            if isinstance(each, jax.Array):
                self._arrays.add(id(each))
            elif np.ndim(each):  # what JAX makes of NumPy's
                self._memory.add(np.asarray(each).ctypes.data)

    def __call__(self, value: Leaf) -> bool:
        return any(map(self._has, [value] if is_value(value) else jax.tree_util.tree_leaves(value)))

    def _has(self, leaf: Leaf) -> bool:
        array = _array_of(leaf)
        if isinstance(array, np.ndarray):
            return array.ctypes.data in self._memory
        return id(array) in self._arrays


def _array_of(value: Leaf) -> Leaf:
    return value.stacked if isinstance(value, PerReplica) else value


def _wanted(value: Leaf, used: bool) -> object:
    """Returns how to remember what was found; a program must not keep objects alive that may lead to its function."""
    # A NumPy array that no program uses may be a buffer that callbacks fill; one number is used as a literal.
    if isinstance(value, np.ndarray) and (used or not value.ndim) and value.nbytes <= _COMPARED:
        return _Contents(value, value.tobytes())
    if is_value(value) or isinstance(value, SETTINGS) or _is_pytree(value):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return _WAY


@dataclasses.dataclass(frozen=True)
class _Contents:
    """A NumPy array and what is in it."""

    array: np.ndarray
    contents: bytes


def _is_pytree(value: Leaf) -> bool:
    return not is_of_flax(value) and not jax.tree_util.all_leaves([value])


def _is_same(wanted: Leaf, now: Leaf) -> bool:
    """Returns whether something that was found counts as what was found before."""
    if isinstance(wanted, weakref.ref):
        return wanted() is now
    if isinstance(wanted, _Contents):
        return wanted.array is now and wanted.array.tobytes() == wanted.contents
    if is_value(wanted) or isinstance(wanted, SETTINGS):
        return _is_same_leaf(wanted, now)
    before, structure = jax.tree_util.tree_flatten(wanted)
    leaves, new_structure = jax.tree_util.tree_flatten(now)
    try:
        if operator.ne(structure, new_structure):
            return False
    except Exception:  # Classes compare their settings as they like; what cannot be compared is another one.
        return False
    return all(map(_is_same_leaf, before, leaves))


def _is_same_leaf(wanted: Leaf, now: Leaf) -> bool:
    if isinstance(wanted, SETTINGS):
        return type(wanted) is type(now) and bool(wanted == now)
    return _array_of(wanted) is _array_of(now)
