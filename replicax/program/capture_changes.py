"""Whether a function still finds, outside of its arguments, the things that its program was made with.

Watched are arrays that the program uses, wherever they are; and arrays, numbers and objects of libraries that the
function's code asks for by name. So are numbers that the code may reach in another way, and how many items containers
have. When one of these changes, only tracing shows whether the program depends on it. If it does not, that is checked
again at its second change, the fourth, the eighth, and so on.
"""

from __future__ import annotations

import dataclasses
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np

from replicax.compat.jax_tracing import conversion_of
from replicax.program.captures import SETTINGS, Found, found_outside, is_of_settings, length_of
from replicax.program.flax.modules import is_of_flax
from replicax.program.keras.settings import KerasSettings
from replicax.typing import Leaf
from replicax.values import PerReplica
from replicax.values.containers import is_same_setting, is_value

_WAY, _GONE = object(), object()
#: How many things are watched that the code may come by, though it does not name them; numbers in lists and dicts.
_MAX_LOOKS, _MAX_ITEMS = 40, 200
#: Of how many containers of other things it is watched how many items they have.
_MAX_LENGTHS = 200
#: Of how many of NumPy's arrays the content is compared; whole up to so many bytes in all, of others so many numbers.
_MAX_ARRAYS, _MAX_BYTES, _SAMPLE = 40, 4_096, 64
#: Kinds of what is watched though it has no name.
_WATCHED = (*SETTINGS, np.ndarray, types.CodeType)
#: Something that has changed: the list that it is watched in, its position, what stands there if that is accepted, and
#: its name.
_Doubt: TypeAlias = tuple[list[Any], int, tuple[Any, ...], str]


@dataclasses.dataclass(frozen=True)
class Change:
    """A function would find another thing outside of its arguments than it did."""

    where: str  # how code calls it, such as `"self.w"`; the first of several
    # If nothing else has changed: the things of which it is not known whether the program depends on them.
    perhaps: tuple[str, ...] = ()


def arrays_outside(fn: object, objects: Sequence[Leaf]) -> set[str]:
    """Returns how the code of a function calls the arrays that it finds outside of its arguments."""
    found = (each for each in found_outside(fn, objects, is_of_flax) if each.named and is_value(each.value))
    return {each.where for each in found if not isinstance(each.value, jax.core.Tracer)}


class Watched:
    """The things that a function found outside of its arguments, or in objects among them, for a program."""

    def __init__(self, fn: object, objects: Sequence[Leaf], constants: Iterable[Leaf], has_settings: bool = True):
        visited: list[object] = []
        found = found_outside(fn, objects, is_of_flax, visited)
        #: Those of Keras's objects; `fit` keeps to them until the model is compiled again.
        self._keras = KerasSettings.of(visited) if has_settings else None
        #: How the code calls what a trace has left outside of the function.
        self.traced = {each.where for each in found if each.named and isinstance(each.value, jax.core.Tracer)}
        uses = _Used(constants)
        named = {id(_array_of(each.value)) for each in found if each.named}
        #: From which of the things found before, how, what must be found (or `_WAY` to something), its name, whether
        #: the program depends on it.
        self._looks: list[tuple[int, Callable[[Any, Any], Any], Any, object, str, bool]] = []
        self._places: dict[tuple[int, Callable[[Any, Any], Any], Any], int] = {}
        #: Lists and dicts of numbers: their places, what must be in them, their names.
        self._contents: list[tuple[int, object, str]] = []
        #: NumPy's arrays, or some of their numbers; their bytes; their names; whether the program depends on them; and
        #: the arrays themselves.
        self._memory: list[tuple[np.ndarray, bytes, str, bool, np.ndarray]] = []
        self._views: set[tuple[object, ...]] = set()
        self._looks_left, self._items_left, self._bytes_left = _MAX_LOOKS, _MAX_ITEMS, _MAX_BYTES
        self._lengths_left = _MAX_LENGTHS
        #: For what the program did not depend on, how often it has changed.
        self._harmless: dict[str, int] = {}
        for each in found:
            # A thing that has a name is not watched at other places, too.
            if is_of_settings(each.value):
                continue
            if each.named or (uses(each.value) and id(_array_of(each.value)) not in named) or is_of_flax(each.value):
                self._watch(each, uses, True)
        for each in found:
            if is_of_settings(each.value):
                self._watch_items(each)
            elif each.path[-1][0] is length_of:
                if self._lengths_left:
                    self._lengths_left -= 1
                    self._watch(each, uses, False)
            elif each.perhaps and not each.named and isinstance(each.value, _WATCHED) and self._looks_left:
                self._looks_left -= 1
                self._watch(each, uses, False)
        for memory in uses.memory():
            self._watch_memory(memory, "a NumPy array", True)

    def _watch(self, found: Found, uses: _Used, is_sure: bool) -> None:
        wanted = _wanted(found.value)
        if wanted is _WAY:
            return
        place = self._place(found, is_sure)
        self._looks[place - 1] = (*self._looks[place - 1][:3], wanted, found.where, is_sure)
        if isinstance(found.value, np.ndarray):
            self._watch_memory(found.value, found.where, uses(found.value))

    def _watch_items(self, found: Found) -> None:
        if len(found.value) <= self._items_left:
            self._items_left -= len(found.value)
            self._contents.append((self._place(found, False), _items(found.value), found.where))

    def _place(self, found: Found, is_sure: bool) -> int:
        """Returns the place of what is found, among all that is looked up on the way."""
        place = 0
        for get, key in found.path:
            at = (place, get, key)
            if at not in self._places:
                self._looks.append((*at, _WAY, found.where, is_sure))
                self._places[at] = len(self._looks)
            place = self._places[at]
        return place

    def _watch_memory(self, array: np.ndarray, where: str, is_sure: bool) -> None:
        view = array.ctypes.data, array.shape, array.strides, array.dtype
        if array.dtype.hasobject or view in self._views or len(self._memory) == _MAX_ARRAYS:
            return
        self._views.add(view)
        whole = array
        if array.ndim and array.nbytes > self._bytes_left:
            most = max(1, round(_SAMPLE ** (1 / array.ndim)))
            array = array[tuple(slice(None, None, -(-size // most) or None) for size in array.shape)]
        else:
            self._bytes_left -= array.nbytes
        self._memory.append((array, array.tobytes(), where, is_sure, whole))

    def changed(self, get_fn: Callable[[], object], objects: Sequence[tuple[int, Leaf]]) -> Change | None:
        """Returns what is another one now than then; None if nothing is on which the program may depend."""
        looks = self._looks
        doubts: list[_Doubt] = []
        found: list[Any] = [(get_fn(), *[leaf for _, leaf in objects]) if objects else (get_fn(),)]
        for i, (place, get, key, wanted, where, is_sure) in enumerate(looks):
            try:
                now = get(found[place], key)
            except (AttributeError, LookupError, TypeError, ValueError):  # It is not there any more, or cannot have it.
                if is_sure:
                    return Change(where)
                now = _GONE
            found.append(now)
            if now is wanted or wanted is _WAY or (type(wanted) is weakref.ref and wanted() is now):
                continue
            if not _is_same(wanted, now):
                if is_sure:
                    return Change(where)
                doubts.append((looks, i, (place, get, key, _wanted(now), where, False), where))
        for i, (array, content, where, is_sure, whole) in enumerate(self._memory):
            if (now := array.tobytes()) != content:
                if is_sure:
                    return Change(where)
                doubts.append((self._memory, i, (array, now, where, False, whole), where))
        for i, (place, items, where) in enumerate(self._contents):
            if not _is_equal(items, found[place]):
                doubts.append((self._contents, i, (place, _items(found[place]), where), where))
        if self._keras is not None and (setting := self._keras.changed()) is not None:
            return Change(setting)
        return self._doubted(doubts) if doubts else None

    def renew_conversions(self) -> None:
        """Gives JAX the present values of arrays of which it keeps its own copy, before the function is traced anew."""
        for *_, whole in self._memory:
            if (converted := conversion_of(whole)) is not None:
                np.copyto(converted, whole, casting="unsafe")

    def _doubted(self, doubts: Sequence[_Doubt]) -> Change | None:
        """Returns what is to be looked at by tracing, of what has changed; notes the rest as it is now."""
        due = []
        for watched, i, entry, where in doubts:
            times = self._harmless.get(where, 0) + 1
            if times & (times - 1) == 0:
                due.append(where)
            else:
                self._harmless[where] = times
                watched[i] = entry
        return Change(due[0], tuple(due)) if due else None

    def goes_on(self, before: Watched, change: Change) -> None:
        """Notes that the program is still the one of what was watched before, in spite of a change."""
        self._harmless.update(before._harmless)
        for where in change.perhaps:
            self._harmless[where] = self._harmless.get(where, 0) + 1

    def depends_on(self, change: Change) -> None:
        """Notes that the program is another one after a change."""
        for where in change.perhaps:
            self._harmless.pop(where, None)


def _items(container: object) -> object:
    """Returns a plain copy of a list, tuple, set or dict of numbers; what is no such thing as it is."""
    for kind in (dict, list, tuple, set, frozenset):
        if isinstance(container, kind):
            return kind(container)
    return container


def _is_equal(items: object, container: object) -> bool:
    try:
        return bool(items == container) and (not _has_zeros(items) or repr(items) == repr(container))
    except Exception:  # Arrays compare each for itself; they are no numbers in any case.
        return False


def _has_zeros(items: object) -> bool:
    """Returns whether 0.0 is among some numbers, which equals -0.0."""
    return 0.0 in (items.values() if isinstance(items, dict) else items)  # type: ignore[operator]  # a container


class _Used:
    """Tells whether a program has captured an array, or one in a pytree of a library."""

    def __init__(self, constants: Iterable[Leaf]):
        self._arrays: set[int] = set()
        self._memory: dict[int, np.ndarray] = {}
        for each in constants:
            if isinstance(each, jax.Array):
                self._arrays.add(id(each))
            elif not isinstance(each, SETTINGS):  # what JAX makes of NumPy's
                memory = np.asarray(each)
                self._memory[memory.ctypes.data] = memory

    def memory(self) -> list[np.ndarray]:
        """Returns NumPy's arrays among what the program has captured, but for numbers that may be the program's own."""
        return [array for array in self._memory.values() if array.ndim]

    def __call__(self, value: Leaf) -> bool:
        return any(map(self._has, [value] if is_value(value) else jax.tree_util.tree_leaves(value)))

    def _has(self, leaf: Leaf) -> bool:
        array = _array_of(leaf)
        if isinstance(array, np.ndarray):
            converted = conversion_of(array)
            return (array if converted is None else converted).ctypes.data in self._memory
        return id(array) in self._arrays


def _array_of(value: Leaf) -> Leaf:
    return value.stacked if isinstance(value, PerReplica) else value


def _wanted(value: Leaf) -> object:
    """Returns how to remember what was found; a program must not keep objects alive that may lead to its function."""
    if is_value(value) or isinstance(value, SETTINGS) or _is_pytree(value):
        return value
    try:
        return weakref.ref(value)
    except TypeError:
        return _WAY


def _is_pytree(value: Leaf) -> bool:
    return not is_of_flax(value) and not jax.tree_util.all_leaves([value])


def _is_same(wanted: Leaf, now: Leaf) -> bool:
    """Returns whether something that was found counts as what was found before."""
    if isinstance(wanted, weakref.ref):
        return wanted() is now
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
        return is_same_setting(wanted, now)
    return _array_of(wanted) is _array_of(now)
