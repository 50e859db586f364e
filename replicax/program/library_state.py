"""State that replicas keep outside of `rx.Variable` (of Keras and flax), as one replica reads and assigns it.

A metric keeps one total. A step divides it: replica 0 continues the total, the others begin with zero, and the sum over
the replicas at the end of their function is the new total. Such a variable is an *accumulator*.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax import varying_axes
from replicax.compat.jax_primitives import taken_as_equal_over_axis
from replicax.contracts.reduce_op import mean_over
from replicax.contracts.strategy import PER_REPLICA, or_null
from replicax.contracts.variable_access import VariableLike, aggregation_of, dtype_of, name_of, synchronization_of
from replicax.program.ir.jaxprs import SHARE, TOTAL
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values.aggregation import VariableAggregation, check_aggregation, combine
from replicax.values.equality import difference


def share_of_replica(variable: VariableLike, value: jax.Array, current: context.Context) -> jax.Array:
    """Returns what a replica reads of a variable: of an accumulator, its share of the total."""
    if current.replica is None or (current.manual_replicas or 1) == 1 or not is_accumulator(variable):
        return value
    frame = cast(context.ReplicaStateFrame, current.frame)
    return value if frame.holds(variable) else share_of_total(variable, value, frame)


def value_to_carry(variable: VariableLike, current: context.Context) -> jax.Array:
    """Returns the value of a variable with which a loop or branch begins."""
    assert current.frame is not None
    return share_of_replica(variable, current.frame.read(variable), current)


def made_equal(
    variable: VariableLike,
    value: jax.Array,
    how: VariableAggregation,
    current: context.Context,
    as_of_first: Callable[[VariableLike, jax.Array], jax.Array] = lambda variable, value: value,
) -> jax.Array:
    """Returns a value that a replica assigns as its frame keeps it: equal on all replicas, or an accumulator's part."""
    replicas = current.manual_replicas or 1
    frame = cast(context.ReplicaStateFrame, current.frame)
    if is_accumulator(variable) and replicas > 1:
        number = defer_total(variable, frame)
        is_mean = VariableAggregation.of(aggregation_of(variable)) is VariableAggregation.MEAN
        return value if is_mean else TOTAL(value, number)
    if replicas > 1 and frame.postpones(variable, how):
        return as_of_first(variable, value)  # what the first replica would have; it is combined later
    value, why = difference(value, refused_if_different=how is VariableAggregation.NONE)
    if why is None:
        return value
    if replicas > 1:
        check_aggregation(how, dtype_of(variable), name_of(variable))
    return combine(value, why, how, replicas, name_of(variable))


def is_accumulator(variable: VariableLike) -> bool:
    """Returns whether replicas count in a variable, as in a metric's: their sums are combined at the end."""
    # An rx.Variable has members of enumerations.
    return synchronization_of(variable) == "on_read" and aggregation_of(variable) in ("sum", "mean")


def defer_total(variable: VariableLike, frame: context.ReplicaStateFrame) -> int:
    """Lets the replicas' parts of an accumulator be combined when their function ends; returns its number."""
    how = VariableAggregation.of(aggregation_of(variable))
    check_aggregation(how, dtype_of(variable), name_of(variable))
    return frame.defer(variable, functools.partial(_aggregate_accumulator, how))


def share_of_total(variable: VariableLike, total: jax.Array, frame: context.ReplicaStateFrame) -> jax.Array:
    """Returns the value from which a replica accumulates: replica 0 continues the total, the others start at zero."""
    if VariableAggregation.of(aggregation_of(variable)) is VariableAggregation.MEAN:
        return total
    # So the sum over replicas is the total at every moment, whether the replicas add to it or reset it.
    share = jnp.where(jax.lax.axis_index(REPLICA_AXIS) == 0, total, jnp.zeros_like(total))
    return SHARE(share, frame.number(variable))


def _aggregate_accumulator(how: VariableAggregation, value: jax.Array) -> jax.Array:
    if how is VariableAggregation.MEAN:
        value, why = difference(value)
        return value if why is None else mean_over(REPLICA_AXIS, value)
    summed: jax.Array = jax.lax.psum(value, REPLICA_AXIS)
    return summed


def replicas_draw_apart(current: context.Context) -> bool:
    """Returns whether each replica draws random numbers of its own; else they draw those of one device together."""
    return or_null(current.strategy).random_numbers == PER_REPLICA


def state_of_random_numbers(value: jax.Array, current: context.Context) -> jax.Array:
    """Returns the state of a generator that all replicas share, typed as equal; in a micro-batch it varies before."""
    varies = (current.manual_replicas or 1) > 1 and REPLICA_AXIS in varying_axes(value)
    return taken_as_equal_over_axis(value, REPLICA_AXIS) if varies else value
