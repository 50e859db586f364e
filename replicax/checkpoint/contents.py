"""The contents of a checkpoint: variables, arrays, and states that JSON can hold, each by its name.

Lists, tuples, dicts and other pytrees are searched. Of plain objects and of Keras's only the variables count; one that
is found twice has the first name. An object under the empty name is a root: its attributes count.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint.encoding import VALUES, HasState, SavedArray, has_state
from replicax.checkpoint.unbuilt import how_to_build, unbuilt_objects
from replicax.checkpoint.variable_names import is_keras_object, is_variable, key_name, kinds_of_optimizers, walk
from replicax.contracts.variable_access import AssignableLike, array_of, dtype_of
from replicax.errors import CheckpointError
from replicax.program.flax.modules import is_of_flax
from replicax.program.flax.variables import FlaxVariable, arrays_held_by, is_flax_variable
from replicax.typing import Leaf, PyTree
from replicax.values import MASKED

_ARRAYS = (jax.Array, np.ndarray, np.generic)
SavedState: TypeAlias = bool | int | float | str | bytes | HasState


@dataclasses.dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint that is to be written."""

    arrays: Mapping[str, SavedArray]  # over a mesh of several processes, each has its view of the same arrays
    state: Mapping[str, object] = dataclasses.field(default_factory=dict)  # what JSON can hold, as in this process
    step: int | None = None
    notes: Mapping[str, object] = dataclasses.field(default_factory=dict)  # small values, of the checkpoint as a whole
    at: float = dataclasses.field(default_factory=time.time, compare=False)  # when it was so, in seconds since 1970


class Described(Protocol):
    """The names, shapes and dtypes of a checkpoint, as known before any value is read."""

    def document(self) -> str:
        """Returns what all processes must have alike."""


_P = TypeVar("_P", bound=Described)


class ToSave(Generic[_P]):
    """The contents that are to be saved: known by names, shapes and dtypes first, and then by values."""

    def __init__(
        self, prepare: Callable[[], _P], contents_of: Callable[[_P], Contents], then: Callable[[], object] | None = None
    ):
        # `then` is called once, when the names are known and before any value is read.
        self._prepare, self._contents_of, self._then = prepare, contents_of, then
        self._prepared: _P | None = None

    def document(self) -> str:
        """Returns what all processes must have alike; may be called again."""
        self._prepared = self._prepare()
        return self._prepared.document()

    def contents(self) -> Contents:
        """Returns the values; may be called again."""
        prepared = self._prepared or self._prepare()
        then, self._then = self._then, None
        if then is not None:
            then()
        return self._contents_of(prepared)


@runtime_checkable
class MayBeEmpty(Protocol):
    """An object of which a checkpoint has nothing in some settings, where others have something."""

    @property
    def may_be_empty(self) -> bool:
        """Whether having no variables is what it should be like."""


@dataclasses.dataclass
class ObjectParts:
    """The parts of some objects that a checkpoint holds, by name: the path to them, such as `state/params/w`."""

    variables: dict[str, AssignableLike] = dataclasses.field(default_factory=dict)
    arrays: dict[str, SavedArray] = dataclasses.field(default_factory=dict)  # not variables; random keys among them
    states: dict[str, SavedState] = dataclasses.field(default_factory=dict)  # random generators among them
    # By path, the meaning of the numbers of optimizers, named tuples and keys: of each class, the narrowest first.
    kinds: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def names(self) -> list[str]:
        return [*self.variables, *self.arrays, *self.states]


def parts_of(objects: Mapping[str, PyTree], allow_unbuilt: bool = False) -> ObjectParts:
    """Returns the parts of objects; `allow_unbuilt`: some may hold nothing yet, because they are not built."""
    parts, seen = ObjectParts(kinds=kinds_of_optimizers(objects)), set[int]()
    for name, value in objects.items():
        found = list(_leaves(value, name, seen, parts.kinds))
        if (
            not found
            and not (isinstance(value, MayBeEmpty) and value.may_be_empty)
            and not list(_leaves(value, name, set(), {}))
        ):
            hints = [how_to_build(path or "root", part) for path, part in unbuilt_objects({name: value}).items()]
            if hints and allow_unbuilt:
                continue
            raise CheckpointError(
                " ".join(
                    [f"There is no variable in {name or 'root'}={value!r:.100}: nothing of it can be saved.", *hints]
                )
            )
        for path, leaf in found:
            if path in parts.variables or path in parts.arrays or path in parts.states:
                raise CheckpointError(f"Two variables would both be called {path!r}. Rename one of them.")
            if is_variable(leaf):
                _check_dtype(dtype_of(leaf), path)
                parts.variables[path] = leaf
                _note_key(dtype_of(leaf), lambda: array_of(leaf), path, parts.kinds)  # noqa: B023
            elif isinstance(leaf, _ARRAYS):
                parts.arrays[path] = leaf
                _note_key(leaf.dtype, lambda: leaf, path, parts.kinds)  # noqa: B023
            else:
                parts.states[path] = leaf
    return parts


def with_values(value: PyTree, path: str, restored: Mapping[str, Leaf]) -> PyTree:
    """Returns `value` with the values in `restored` in place of its arrays and numbers of those names."""
    if path in restored:
        return restored[path]
    if is_of_flax(value):
        return value  # Its variables are restored where they are.
    if isinstance(value, Mapping):
        children = {key: with_values(child, _join(path, key_name(key)), restored) for key, child in value.items()}
        if not isinstance(value, dict):
            return children
        again = copy.copy(value)
        again.update(children)
        return again
    if _is_single(value):
        return value
    named, treedef = _one_level(value)
    if treedef is None:
        return value
    new = [with_values(child, _join(path, name), restored) for name, child in named]
    return jax.tree_util.tree_unflatten(treedef, new)


def replace_values(objects: dict[str, PyTree], parts: ObjectParts, new: Mapping[str, Leaf]) -> dict[str, PyTree]:
    """Puts new values in the places of arrays and numbers in objects; returns the objects that have such, by name."""
    names = [*parts.arrays, *(name for name, part in parts.states.items() if is_value(part))]
    replaced = {}
    for name, value in objects.items():
        if any(path == name or path.startswith(f"{name}/") for path in names):
            replaced[name] = objects[name] = with_values(value, name, new)
    return replaced


def is_value(leaf: Leaf) -> bool:
    """Returns whether a part is a value, which a restored value replaces, rather than an object."""
    return isinstance(leaf, (*VALUES, *_ARRAYS))


def _leaves(value: PyTree, path: str, seen: set[int], kinds: dict[str, list[str]]) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, _ARRAYS):
        _check_numbers(value, path)
        yield path, value
    elif isinstance(value, VALUES):
        yield path, value
    elif isinstance(value, complex):
        raise CheckpointError(
            f"{path!r} is {value}, and numbers in a checkpoint are real. Save np.complex128(...) of it."
        )
    elif is_of_flax(value):
        found = _named_tuples_in(value)
        if found:
            kinds[path] = [", ".join(found)]
        yield from flax_arrays(value, path, seen)
    elif _is_single(value):
        if has_state(value) and id(value) not in seen:
            seen.add(id(value))
            yield path, value
        else:
            yield from walk(value, path, seen)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(child, _join(path, key_name(key)), seen, kinds)
    else:
        named, treedef = _one_level(value)
        if treedef is None:
            yield from walk(value, path, seen)
        if _is_named_tuple(value):
            kinds[path] = [type(value).__name__]
        for name, child in named:
            yield from _leaves(child, _join(path, name), seen, kinds)


def _is_named_tuple(value: PyTree) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def _named_tuples_in(value: PyTree) -> list[str]:
    """Returns the names of the classes of named tuples, such as the states of Optax, in their order."""
    names: list[str] = []

    def note(node: PyTree) -> bool:
        if _is_named_tuple(node):
            names.append(type(node).__name__)
        return False

    jax.tree_util.tree_flatten(value, is_leaf=note)
    return names


def _note_key(dtype: jax.typing.DTypeLike, array: Callable[[], Leaf], path: str, kinds: dict[str, list[str]]) -> None:
    # The array is asked for a key's algorithm alone: that of a variable may be on a server.
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        kinds[path] = [f"a key of {jax.random.key_impl(array())}"]
    elif not jax.dtypes.issubdtype(dtype, jax.dtypes.extended) and jnp.dtype(dtype) == jnp.uint32:
        kinds[path] = ["numbers without the type of a key"]  # as those of a key are


def _check_numbers(array: SavedArray, path: str) -> None:
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended):
        return  # random keys
    dtype = np.dtype(array.dtype)
    if dtype.kind in "OSUmM" or dtype.names is not None:
        raise CheckpointError(
            f"{path!r} is {array!r:.100}, an array of {dtype}. Arrays in a checkpoint hold numbers: save text as str "
            "or a list of them, times as numbers, and the fields of a table one by one."
        )
    if isinstance(array, np.ma.MaskedArray):
        raise CheckpointError(f"{path!r} is {MASKED}")
    _check_dtype(dtype, path)


def _check_dtype(given: jax.typing.DTypeLike, path: str) -> None:
    if jax.dtypes.issubdtype(given, jax.dtypes.extended):
        return
    dtype = jnp.dtype(given)
    if dtype.kind != "V":
        return
    import tensorstore

    if not hasattr(tensorstore, dtype.name):
        raise CheckpointError(f"{path!r} has dtype {dtype.name}, which TensorStore does not write. Save another one.")


def _is_single(value: object) -> bool:
    """Returns whether a value is one part, even if it looks like a container."""
    return is_variable(value) or is_keras_object(value) or has_state(value)


def _one_level(value: PyTree) -> tuple[list[tuple[str, PyTree]], jax.tree_util.PyTreeDef | None]:
    """Returns the named children of a pytree's root and how to unflatten them; `[]` and None if it is a leaf."""
    children, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if jax.tree_util.treedef_is_leaf(treedef):
        return [], None
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), child) for path, child in children], treedef


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def flax_arrays(value: Leaf, path: str, seen: set[int]) -> Iterator[tuple[str, FlaxVariable]]:
    """Yields what stands for the arrays in the variables of a module, state or variable, and their names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if is_flax_variable(value):
        arrays = list(arrays_held_by(value))
        yield from ((path if len(arrays) == 1 else f"{path}/{i}", each) for i, each in enumerate(arrays))
        return
    children, _ = jax.tree_util.tree_flatten_with_path(
        value, is_leaf=lambda node: node is not value and is_of_flax(node)
    )
    for keys, child in children:
        if is_of_flax(child):
            yield from flax_arrays(child, f"{path}/{jax.tree_util.keystr(keys, simple=True, separator='/')}", seen)
