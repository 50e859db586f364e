"""Writing variables to a checkpoint and giving them their values back, whatever their layout then or now."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint.store import Directory, entries, read_arrays, write_arrays
from replicax.errors import CheckpointError
from replicax.program.frames import variable_is_stacked, variable_shape


def write_variables(directory: Directory, variables: Mapping[str, Any]) -> Path:
    """Writes the values of variables to a new directory and returns its path.

    Raises:
        CheckpointError: The directory exists, or cannot be written.
    """
    return write_arrays(directory, {name: _saved(variable) for name, variable in variables.items()})


def restore_variables(directory: Directory, variables: Mapping[str, Any], partial: bool = False) -> None:
    """Gives variables the values that a checkpoint has for them: all of them, or none if anything is wrong.

    Args:
        directory: Where the checkpoint is.
        variables: Variables by name. Each keeps its layout and dtype, whatever those of the values were.
        partial: Whether the checkpoint and the variables may have names that the other lacks.

    Raises:
        CheckpointError: There is no complete checkpoint, a name is missing on either side, or a shape differs.
    """
    found = entries(directory)
    unused, missing = (
        [name for name in found if name not in variables],
        [name for name in variables if name not in found],
    )
    if (unused or missing) and not partial:
        raise CheckpointError(
            f"The checkpoint {directory} and the objects do not match. Only in the checkpoint: {unused or 'nothing'}; "
            f"only in the objects: {missing or 'nothing'}. To restore what both have, pass partial=True."
        )
    common = {name: variable for name, variable in variables.items() if name in found}
    values = read_arrays(directory, {name: _wanted(variable) for name, variable in common.items()})
    for name, variable in common.items():
        variable.assign(_restored(values[name], variable))


def _saved(variable: Any) -> jax.Array:
    value = variable.value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value.astype(jnp.bfloat16) if getattr(variable, "save_as_bf16", False) else value


def _wanted(variable: Any) -> jax.ShapeDtypeStruct:
    shape, value = variable_shape(variable), variable._value
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, value)
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    # A value that JAX has placed by default comes back as NumPy: committed to that device, it could not be used
    # together with values elsewhere any more.
    spread = value.committed and not variable_is_stacked(variable)
    return jax.ShapeDtypeStruct(shape, value.dtype, sharding=value.sharding if spread else None)


def _restored(value: Any, variable: Any) -> Any:
    if jnp.issubdtype(variable._value.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(value), impl=jax.random.key_impl(variable._value))
    return value if isinstance(value, jax.Array) else np.asarray(value)
