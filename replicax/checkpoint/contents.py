"""What a checkpoint of some objects consists of: variables, arrays, and states that JSON can hold."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from replicax.checkpoint.encoding import VALUES, has_state
from replicax.checkpoint.variable_names import how_to_build, is_keras_object, is_variable, key_name, unbuilt, walk
from replicax.errors import CheckpointError


@dataclasses.dataclass
class Parts:
    """The parts of some objects, by name: the way to them, such as `state/params/w`.

    Attributes:
        variables: Variables, of replicax or Keras.
        arrays: Arrays that are no variables, random keys among them.
        states: Numbers, strings, random generators, and objects with `get_state` and `set_state`.
    """

    variables: dict[str, Any] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Any] = dataclasses.field(default_factory=dict)
    states: dict[str, Any] = dataclasses.field(default_factory=dict)

    def names(self) -> list[str]:
        """Returns the names of all parts."""
        return [*self.variables, *self.arrays, *self.states]


def parts_of(objects: Mapping[str, Any], allow_unbuilt: bool = False) -> Parts:
    """Returns the parts of objects.

    Lists, tuples, dicts and other pytrees are gone through. Of plain objects and of Keras's only the variables count;
    one that is found twice has the first name. An object under the empty name is a root: its attributes count.

    Args:
        objects: The objects by name.
        allow_unbuilt: Whether there may be objects that hold nothing yet because they are not built.

    Raises:
        CheckpointError: There is nothing to save in an object, a dict's key is no name, or two parts would have the
            same name.
    """
    parts, seen = Parts(), set[int]()
    for name, value in objects.items():
        found = list(_leaves(value, name, seen))
        if not found and not list(_leaves(value, name, set())):
            hints = [how_to_build(path or "root", part) for path, part in unbuilt({name: value}).items()]
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
            _place_of(leaf, parts)[path] = leaf
    return parts


def rebuilt(value: Any, path: str, restored: Mapping[str, Any]) -> Any:
    """Returns `value` with the values in `restored` in the place of its arrays and numbers of those names."""
    if path in restored:
        return restored[path]
    if isinstance(value, Mapping):
        children = {key: rebuilt(child, _join(path, key_name(key)), restored) for key, child in value.items()}
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
    return jax.tree_util.tree_unflatten(treedef, [rebuilt(child, _join(path, name), restored) for name, child in named])


def is_value(leaf: Any) -> bool:
    """Returns whether a part is a value, which a restored one takes the place of, rather than an object."""
    return isinstance(leaf, (*VALUES, jax.Array, np.ndarray, np.generic))


def _place_of(leaf: Any, parts: Parts) -> dict[str, Any]:
    if is_variable(leaf):
        return parts.variables
    return parts.arrays if isinstance(leaf, (jax.Array, np.ndarray, np.generic)) else parts.states


def _leaves(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        if np.dtype(value.dtype if not jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended) else "u4").hasobject:
            raise CheckpointError(f"{path!r} is an array of Python objects, which a checkpoint cannot hold.")
        yield path, value
    elif isinstance(value, VALUES):
        yield path, value
    elif _is_single(value):
        if has_state(value) and id(value) not in seen:
            seen.add(id(value))
            yield path, value
        else:
            yield from walk(value, path, seen)
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from _leaves(child, _join(path, key_name(key)), seen)
    else:
        named, treedef = _one_level(value)
        if treedef is None:
            yield from walk(value, path, seen)
        for name, child in named:
            yield from _leaves(child, _join(path, name), seen)


def _is_single(value: Any) -> bool:
    """Returns whether a value is taken as a whole, even if it looks like a container."""
    return is_variable(value) or is_keras_object(value) or has_state(value)


def _one_level(value: Any) -> tuple[list[tuple[str, Any]], Any]:
    """Returns the named children of a pytree's root and how to put them together; `[]` and None if it is a leaf."""
    children, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda node: node is not value)
    if jax.tree_util.treedef_is_leaf(treedef):
        return [], None
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), child) for path, child in children], treedef


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
