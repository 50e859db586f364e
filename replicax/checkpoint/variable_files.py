"""Writing variables to a checkpoint and giving them their values back, whatever their layout then or now."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint.reading import checked_metadata, read_arrays
from replicax.checkpoint.writing import Directory, write_arrays
from replicax.compat.jax import is_random_key
from replicax.errors import CheckpointError
from replicax.variable_access import array_of, is_per_replica_variable, shape_of

_log = logging.getLogger(__name__)

_SHOWN = 10  # names that a warning lists


def write_variables(directory: Directory, variables: Mapping[str, Any]) -> Path:
    """Writes the values of variables to a new directory and returns its path.

    Raises:
        CheckpointError: The directory exists, or cannot be written.
    """
    return write_arrays(directory, {name: saved_value(variable) for name, variable in variables.items()})


def restore_variables(directory: Directory, variables: Mapping[str, Any], partial: bool = False) -> None:
    """Gives variables the values that a checkpoint has for them: all of them, or none if anything is wrong.

    Args:
        directory: Where the checkpoint is.
        variables: Variables by name. Each keeps its layout and dtype, whatever those of the values were.
        partial: Whether the checkpoint and the variables may have names that the other lacks.

    Raises:
        CheckpointError: There is no complete checkpoint, a name is missing on either side, or a shape differs.
    """
    metadata = checked_metadata(directory)
    found = metadata.arrays
    if not partial:
        check_names(directory, found, variables)
    common = {name: variable for name, variable in variables.items() if name in found}
    wanted = {name: wanted_value(variable) for name, variable in common.items()}
    values = read_arrays(directory, wanted, metadata)
    for name, variable in common.items():
        variable.assign(restored_value(values[name], variable))


def check_names(directory: Directory, found: Iterable[str], expected: Iterable[str]) -> None:
    """Checks that a checkpoint and the objects have the same names.

    Args:
        directory: The checkpoint.
        found: The names in it.
        expected: Those in the objects.

    Raises:
        CheckpointError: They do not; it lists those that one side lacks.
    """
    unused, missing = differences(found, expected)
    if unused or missing:
        raise CheckpointError(
            f"The checkpoint {directory} and the objects do not match. Only in the checkpoint: {unused or 'nothing'}; "
            f"only in the objects: {missing or 'nothing'}. To restore what both have, as TensorFlow does with "
            "expect_partial(), pass partial=True."
        )


def warn_of_left_out(directory: Directory, found: Iterable[str], expected: Iterable[str]) -> None:
    """Says what a restore of what both sides have has left out; the arguments are those of `check_names`."""
    unused, missing = differences(found, expected)
    if unused or missing:
        _log.warning(
            "The checkpoint %s was restored in part. Only in the checkpoint, and left out: %s; "
            "only in the objects, and as before: %s.",
            directory,
            _some(unused),
            _some(missing),
        )


def differences(found: Iterable[str], expected: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the names that are found but not expected, and those that are expected but not found."""
    found, expected = dict.fromkeys(found), dict.fromkeys(expected)
    return [name for name in found if name not in expected], [name for name in expected if name not in found]


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown or "nothing"


def saved_value(variable: Any) -> jax.Array:
    """Returns what a checkpoint stores for a variable."""
    value = saved_array(variable.value)
    return value.astype(jnp.bfloat16) if getattr(variable, "save_as_bf16", False) else value


def wanted_value(variable: Any) -> jax.ShapeDtypeStruct:
    """Returns how the stored value of a variable is to be read."""
    placed = array_of(variable).committed and not is_per_replica_variable(variable)
    return _wanted(array_of(variable), shape_of(variable), placed)


def restored_value(value: Any, variable: Any) -> Any:
    """Returns what to assign to a variable for a value that was read."""
    if is_random_key(array_of(variable)):
        return _key_like(array_of(variable), value)
    return value if isinstance(value, jax.Array) else np.asarray(value)


# Arrays that are no variables.


def saved_array(array: Any) -> Any:
    """Returns what a checkpoint stores for an array."""
    return jax.random.key_data(array) if is_random_key(array) else array


def wanted_array(array: Any) -> jax.ShapeDtypeStruct:
    """Returns how the stored values of an array are to be read."""
    return _wanted(array, np.shape(array), placed=isinstance(array, jax.Array) and array.committed)


def restored_array(value: Any, old: Any) -> Any:
    """Returns an array of the kind of `old`, and where that is, for values that were read."""
    if is_random_key(old):
        key = _key_like(old, value)
        return jax.device_put(key, old.sharding) if old.committed and old.is_fully_addressable else key
    if isinstance(old, jax.Array):
        return value if isinstance(value, jax.Array) else jnp.asarray(value)
    return old.dtype.type(value) if isinstance(old, np.generic) else value


def _wanted(value: Any, shape: tuple[int, ...], placed: bool) -> jax.ShapeDtypeStruct:
    if is_random_key(value):
        data = jax.eval_shape(jax.random.key_data, value)
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    # What JAX has placed by default comes back as NumPy: committed to that device, it could not be used together with
    # values elsewhere any more.
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=value.sharding if placed else None)


def _key_like(key: jax.Array, data: Any) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(key))
