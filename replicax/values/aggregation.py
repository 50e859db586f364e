"""How values that replicas assign to one variable are combined."""

from __future__ import annotations

import enum
import re
from typing import Self

import jax
import jax.numpy as jnp

from replicax.checks.named import Named, member_of
from replicax.compat.jax import is_random_key
from replicax.compat.jax_primitives import assert_equal_over_axis
from replicax.contracts.reduce_op import mean_over
from replicax.errors import ReplicaDivergenceError, VariableError
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values.equality import Difference, difference

# The scope of what combines the replicas' values of a variable: a message names the variable instead of a collective.
_ASSIGNMENT = "replicax_assignment<{}>"


class _Named(Named):
    @classmethod
    def of(cls, value: str | enum.Enum | None) -> Self:
        """Returns the member that `value` is or names (any case; None is the default member)."""
        return member_of(cls, "none" if value is None else value, cls.__name__, VariableError)


class VariableSynchronization(_Named):
    """When the copies of a variable are made consistent: at every write, or only when read from outside a replica.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     rows = rx.Variable(0.0, synchronization=rx.VariableSynchronization.ON_READ, aggregation="sum")
        >>> outputs = strategy.run(lambda: rows.assign_add(2.0))
        >>> float(rows.numpy())
        4.0
    """

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"


class VariableAggregation(_Named):
    """How values that replicas assign are combined.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     total = rx.Variable(0, aggregation=rx.VariableAggregation.SUM)
        >>> outputs = strategy.run(lambda: total.assign_add(rx.get_replica_context().replica_id_in_sync_group))
        >>> int(total.numpy())
        1
    """

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


def check_aggregation(aggregation: VariableAggregation, dtype: jax.typing.DTypeLike, name: str) -> None:
    """Checks that a variable's values, combined, are of its dtype."""
    if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
        raise VariableError(f"Variable {name!r}: a mean of {dtype} values is not {dtype}; use a float dtype.")
    if aggregation is VariableAggregation.SUM and not jnp.issubdtype(dtype, jnp.number):
        raise VariableError(
            f"Variable {name!r}: a sum of {dtype} values is not {dtype}. To count, use dtype='int32'; to ask whether "
            "any replica has it, count and compare with 0."
        )


def aggregate(value: jax.Array, aggregation: VariableAggregation, replicas: int, name: str) -> jax.Array:
    """Makes a value that replicas assign to a mirrored variable equal on all, by type too (loss: see `difference`)."""
    sums = aggregation is VariableAggregation.SUM and replicas > 1
    value, why = difference(value, sums, refused_if_different=aggregation is VariableAggregation.NONE)
    if why is None:
        if sums:
            raise VariableError(
                f"Variable {name!r} sums what its replicas assign, but this value is the same on all {replicas} "
                f"replicas, so the sum would be {replicas} times the value. Assign a value that differs per replica, "
                "or create the variable with aggregation='mean' or 'only_first_replica'."
            )
        return value
    return combine(value, why, aggregation, replicas, name)


def combine(value: jax.Array, why: Difference, aggregation: VariableAggregation, replicas: int, name: str) -> jax.Array:
    """Makes a value equal on all replicas that may differ for the reason `why`; otherwise like `aggregate`."""
    if replicas == 1:
        return assert_equal_over_axis(value, REPLICA_AXIS)
    with jax.named_scope(_ASSIGNMENT.format(name)):
        if aggregation is VariableAggregation.SUM:
            return jax.lax.psum(value, REPLICA_AXIS)
        if aggregation is VariableAggregation.MEAN:
            return mean_over(REPLICA_AXIS, value)
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return first_replica(value)
    raise ReplicaDivergenceError(name, why.reason)


def assigned_in(scopes: str) -> str | None:
    """Returns the name of the variable for whose assignment `combine` has traced an operation; None if it was not."""
    found = re.search(_ASSIGNMENT.format("(.*?)"), scopes)
    return None if found is None else found[1]


def first_replica(value: jax.Array) -> jax.Array:
    """Returns replica 0's `value` on every replica."""
    if is_random_key(value):
        data = first_replica(jax.random.key_data(value))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    mine = jax.lax.axis_index(REPLICA_AXIS) == 0
    if jnp.issubdtype(value.dtype, jnp.bool_):
        return first_replica(value.astype(jnp.uint8)).astype(bool)
    return jax.lax.psum(jnp.where(mine, value, jnp.zeros_like(value)), REPLICA_AXIS)
