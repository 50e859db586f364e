"""Placeholders, which stand in a trace for the values of variables, and a replica's part of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import jax
import jax.numpy as jnp

from replicax.compat.jax import is_random_key, vary
from replicax.compat.jax_primitives import stand_in
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    dtype_of,
    has_split_rows,
    is_per_replica_variable,
    shape_of,
)
from replicax.runtime.mesh import REPLICA_AXIS

if TYPE_CHECKING:
    from replicax.variables import Variable


def own_row(stacked: jax.Array) -> jax.Array:
    """Returns this replica's component of a stacked array, inside `shard_map`."""
    return stacked[jax.lax.axis_index(REPLICA_AXIS)]


def own_rows(value: jax.Array, replicas: int) -> jax.Array:
    """Returns this replica's rows of an array whose rows are split over `replicas` replicas, inside `shard_map`."""
    own = -(-value.shape[0] // replicas)
    filled = jnp.pad(value, [(0, own * replicas - value.shape[0]), *[(0, 0)] * (value.ndim - 1)])
    return jax.lax.dynamic_slice_in_dim(filled, jax.lax.axis_index(REPLICA_AXIS) * own, own)


def stacked_in_program(variable: VariableLike) -> int | None:
    """Returns the number of stacked components of a variable that has one per replica, otherwise None."""
    return (
        or_null(cast("Variable", variable).strategy).num_replicas_in_sync if is_per_replica_variable(variable) else None
    )


def placeholder_of_component(variable: VariableLike) -> jax.Array:
    """Returns what stands for a replica's part of the variable's value, inside `shard_map`."""
    if has_split_rows(variable):
        rows, *rest = shape_of(variable)
        own = -(-rows // jax.lax.axis_size(REPLICA_AXIS))
        return vary(stand_in((own, *rest), array_of(variable).dtype), REPLICA_AXIS)
    value = placeholder(variable, None)
    return vary(value, REPLICA_AXIS) if is_per_replica_variable(variable) else value


def placeholder(variable: VariableLike, stacked: int | None) -> jax.Array:
    """Returns what stands for the variable's value in a trace: it has its shape and dtype."""
    value = array_of(variable)
    if is_random_key(value):
        return stand_in(value.shape, value.dtype)
    dtype = jax.dtypes.canonicalize_dtype(dtype_of(variable) if value is None else value.dtype)
    shape = shape_of(variable)
    return stand_in(shape if stacked is None else (stacked, *shape), dtype)
