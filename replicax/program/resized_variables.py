"""Variables with a component for each replica, where the number of replicas changes."""

from __future__ import annotations

import jax
import numpy as np

from replicax.contracts.variable_access import VariableLike, is_per_replica_variable, shape_of
from replicax.values.aggregation import VariableAggregation, VariableSynchronization
from replicax.variables import Variable


def refitted(variable: VariableLike, value: np.ndarray, components: int, replicas: int) -> np.ndarray:
    """Returns the value of a variable for another number of replicas; the variable counts with that number then."""
    if not isinstance(variable, Variable) or variable.synchronization is not VariableSynchronization.ON_READ:
        return value
    variable.per_replica = replicas > 1
    stacked = value if components else value[None]  # 0 components: one value for all replicas
    if len(stacked) != replicas:
        stacked = _redistributed(stacked, variable.aggregation, replicas)
    return stacked if replicas > 1 else stacked[0]


def components_in(variable: VariableLike, value: np.ndarray) -> int:
    """Returns how many components a value of a variable has; 0 if it is one value for all replicas."""
    is_on_read = is_per_replica_variable(variable) or (
        isinstance(variable, Variable) and variable.synchronization is VariableSynchronization.ON_READ
    )
    return len(value) if is_on_read and value.ndim > len(shape_of(variable)) else 0


def _redistributed(stacked: np.ndarray, aggregation: VariableAggregation, replicas: int) -> np.ndarray:
    # The value outside of replicas stays as it is.
    if aggregation is VariableAggregation.NONE:  # Nobody reads it but the replicas: each goes on with its own.
        known = stacked[:replicas]
        return np.concatenate([known, np.repeat(stacked[:1], replicas - len(known), axis=0)])
    if aggregation is VariableAggregation.SUM:
        total = stacked.sum(axis=0, dtype=stacked.dtype)
        return np.stack([total, *[np.zeros_like(total)] * (replicas - 1)])
    first = stacked[0]
    if aggregation is VariableAggregation.MEAN:
        first = np.asarray(jax.numpy.mean(stacked, axis=0)).astype(stacked.dtype)
    return np.repeat(first[None], replicas, axis=0)
