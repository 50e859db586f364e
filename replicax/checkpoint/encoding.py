"""How variables, arrays and states are stored in a checkpoint, and how they are restored from it.

Variables and arrays become plain arrays, whatever their layout then or now. States of numbers, random generators, and
objects that tell their state themselves become JSON. There is no pickle.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import is_random_key
from replicax.contracts.group import current_group
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    is_per_replica_variable,
    is_saved_as_bfloat16,
    shape_of,
    stored_form_of,
)
from replicax.errors import CheckpointError
from replicax.typing import Leaf, PyTree

VALUES = (bool, int, float, str, bytes)
_BYTES, _ARRAY, _DTYPE = "__bytes__", "__array__", "dtype"  # the keys of a dict that stands for bytes or an array
_TAKEN = ({_BYTES}, {_ARRAY, _DTYPE})
SavedArray: TypeAlias = jax.Array | np.ndarray | np.generic


class HasState(Protocol):
    """An object that tells its state itself, such as a data iterator."""

    def get_state(self) -> PyTree:
        """Returns the state: bytes, or dicts with strings as keys, lists, numbers, strings and arrays."""

    def set_state(self, state: PyTree) -> object:
        """Gives the object a state that `get_state` has returned."""


# Variables.


def saved_value(variable: VariableLike) -> SavedArray:
    """Returns what a checkpoint stores for a variable."""
    form = stored_form_of(variable)
    value = saved_array(variable.value) if form is None else form.stored(array_of(variable))
    return value.astype(jnp.bfloat16) if is_saved_as_bfloat16(variable) else value


def wanted_value(variable: VariableLike) -> jax.ShapeDtypeStruct:
    """Returns how the stored value of a variable is to be read."""
    array, form = array_of(variable), stored_form_of(variable)
    if form is not None:
        return jax.ShapeDtypeStruct(form.shape, array.dtype)
    # Of a large variable whose parameter server was lost, no more than shape and dtype may be known.
    # Where workers come and go, each reads the whole: it may be the only one left when it has.
    committed = isinstance(array, jax.Array) and array.committed and not current_group().may_change
    return _wanted(array, shape_of(variable), committed and not is_per_replica_variable(variable))


def restored_value(value: SavedArray, variable: VariableLike) -> jax.Array | np.ndarray:
    """Returns what to assign to a variable for a value that was read."""
    if is_random_key(array_of(variable)):
        return _key_like(array_of(variable), value)
    form = stored_form_of(variable)
    if form is not None:
        return form.restored(np.asarray(value))
    return value if isinstance(value, jax.Array) else np.asarray(value)


# Arrays that are not variables.


def saved_array(array: SavedArray) -> SavedArray:
    """Returns what a checkpoint stores for an array."""
    return jax.random.key_data(array) if is_random_key(array) else array


def wanted_array(array: SavedArray) -> jax.ShapeDtypeStruct:
    """Returns how the stored values of an array are to be read."""
    return _wanted(array, np.shape(array), placed=isinstance(array, jax.Array) and array.committed)


def restored_array(value: SavedArray, old: SavedArray) -> SavedArray:
    """Returns an array of the kind of `old`, and placed like it, for values that were read."""
    if isinstance(old, jax.Array):
        if is_random_key(old):
            key = _key_like(old, value)
            return jax.device_put(key, old.sharding) if old.committed and old.is_fully_addressable else key
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    return old.dtype.type(value) if isinstance(old, np.generic) else value


def _wanted(value: SavedArray, shape: tuple[int, ...], placed: bool) -> jax.ShapeDtypeStruct:
    if is_random_key(value):
        data = jax.eval_shape(jax.random.key_data, value)
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    # An array that JAX has placed by default is read as NumPy: committed to that device, it could not be used
    # together with values on others any more.
    sharding = value.sharding if placed and isinstance(value, jax.Array) else None
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=sharding)


def _key_like(key: jax.Array, data: SavedArray) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(key))


# States.


def has_state(value: object) -> TypeGuard[HasState]:
    """Returns whether an object has a state to save and restore: a NumPy generator, or by its methods."""
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return True
    if isinstance(value, type):
        return False
    return callable(getattr(value, "get_state", None)) and callable(getattr(value, "set_state", None))


def saved_state(name: str, value: Leaf) -> dict[str, object]:
    """Returns the state of a value or object in a form that JSON can hold."""
    encoded = _encoded(name, current_state(value))
    return {"value": encoded} if isinstance(value, VALUES) else {"state": encoded}


def restored_state(name: str, states: Sequence[Mapping[str, object]], process: int, processes: int) -> PyTree:
    """Returns the state that process `process` of `processes` gets."""
    found = [_part(name, state) for state in states]
    if len({kind for kind, _ in found}) > 1:
        raise CheckpointError(f"{name!r} is a value in the checkpoint of one process, and an object in another's.")
    if found[0][0] == "value":  # Numbers are the chief's.
        return _decoded_part(name, found[0][1])
    # States of objects may differ between processes if as many restore as have written; otherwise all must be equal.
    if len(found) == processes:
        return _decoded_part(name, found[process][1])
    if any(state != found[0] for state in found):
        raise CheckpointError(
            f"The state of {name!r} differs between the {len(found)} processes that wrote it, so it cannot be given to "
            f"{processes}. Restore with {len(found)} processes, or use an object whose state is the same in all."
        )
    return _decoded_part(name, found[0][1])


def _part(name: str, state: Mapping[str, object]) -> tuple[str, object]:
    """Returns the kind of a part in the state of a process, "value" or "state", and its encoded state."""
    part = state.get(name)
    if not isinstance(part, Mapping) or part.keys() not in ({"value"}, {"state"}):
        raise CheckpointError(f"The checkpoint has no state of {name!r} that can be read, but {part!r:.100}.")
    ((kind, encoded),) = part.items()
    return kind, encoded


def set_state(target: HasState | np.random.Generator, state: PyTree) -> None:
    """Gives an object a state that it had."""
    if isinstance(target, np.random.Generator):
        target.bit_generator.state = state
    else:
        target.set_state(state)


def set_states(targets: Mapping[str, PyTree], states: Mapping[str, PyTree]) -> None:
    """Sets the states of all objects, or of none."""
    before = {name: current_state(target) for name, target in targets.items()}
    done: list[str] = []
    try:
        for name, target in targets.items():
            done.append(name)
            set_state(target, states[name])
    except Exception as error:
        for name in done[:-1]:
            set_state(targets[name], before[name])
        raise CheckpointError(f"{done[-1]!r} does not take the state in the checkpoint: {error!r}") from error


def current_state(value: Leaf) -> PyTree:
    """Returns the state of a value or object, as `set_state` takes it."""
    if isinstance(value, VALUES):
        return value
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.get_state()


def _encoded(name: str, value: PyTree) -> object:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode("ascii")}
    if isinstance(value, (np.ndarray, np.generic)) and (dtype := _name_of(np.dtype(value.dtype))):
        return {_ARRAY: np.asarray(value).tolist(), _DTYPE: dtype}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value) and value.keys() not in _TAKEN:
        return {key: _encoded(name, child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(name, child) for child in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(
        f"The state of {name!r} contains {value!r:.100}, which a checkpoint cannot hold. `get_state` returns bytes, or "
        f"dicts with strings as keys (other than {_BYTES!r}, and {_ARRAY!r} with {_DTYPE!r}), lists, numbers, strings "
        "and arrays of real numbers or strings."
    )


def _name_of(dtype: np.dtype) -> str:
    """Returns the name by which a dtype is found again; empty if JSON cannot hold its numbers."""
    if dtype.kind in "biufU":
        return dtype.str
    # Those that NumPy does not have, such as bfloat16: `str` is the same for several of them.
    return dtype.name if jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer) else ""


def _decoded_part(name: str, value: object) -> PyTree:
    try:
        return _decoded(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"The state of {name!r} in the checkpoint cannot be read: {error}") from error


def _decoded(value: PyTree) -> PyTree:
    if isinstance(value, list):
        return [_decoded(child) for child in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_BYTES}:
        return base64.b64decode(value[_BYTES])
    if value.keys() == {_ARRAY, _DTYPE}:
        dtype = np.dtype(value[_DTYPE])
        if dtype.hasobject:
            raise ValueError(f"an array of Python objects, dtype {dtype}")
        return np.asarray(value[_ARRAY], dtype)
    return {key: _decoded(child) for key, child in value.items()}
