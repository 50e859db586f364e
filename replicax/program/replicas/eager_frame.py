"""A replica function that runs operation by operation: variables are read directly, and decisions go by the values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import is_random_key, vary, varying_axes
from replicax.compat.jax_tracing import Trace, outside_traces, within_trace
from replicax.compat.keras import initialize_new_variables
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, array_of, has_split_rows, is_per_replica_variable
from replicax.errors import ProgramError
from replicax.program.accesses import Accesses
from replicax.program.frames import ReplicaFrame
from replicax.program.ir.decisions import Decisions
from replicax.program.placeholders import own_row, own_rows
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values.equality import OWN_DATA, Difference


class EagerReplicaFrame(ReplicaFrame):
    """Reads the variables themselves, placed on the mesh on which the replicas run."""

    def __init__(self, outside: Trace, strategy: StrategyBase, replicas: int):
        super().__init__(outside, Decisions(), Accesses())
        self._strategy, self._replicas = strategy, replicas

    def read(self, variable: VariableLike) -> jax.Array:
        if self.holds(variable):
            return super().read(variable)
        if array_of(variable) is None:
            with within_trace(self._outside):
                initialize_new_variables()
        self.accesses.read(variable)
        value = array_of(variable)
        if value.sharding != self._strategy.placement.replica_sharding(variable, self._replicas):
            value = _as_constant(value)  # Inside the map nothing can be moved, but a constant can be used.
        # The copy is a value of the map; operations on a part of the array itself would look for it on another mesh.
        value = jnp.copy(value)
        if has_split_rows(variable):
            return own_rows(value, self._replicas)
        return own_row(value) if is_per_replica_variable(variable) else value

    def decide(self, value: jax.Array, refused_if_equal: bool) -> tuple[jax.Array, Difference | None]:
        """Decides by the values themselves; in a function that JAX traces on its own there are none: by their type."""
        del refused_if_equal
        by_type = OWN_DATA if REPLICA_AXIS in varying_axes(value) else None
        try:
            if not _is_same_everywhere(value):
                return vary(value, REPLICA_AXIS), by_type or Difference(DIFFERS_NOW)
            return value, None
        except jax.errors.ConcretizationTypeError:
            # In a loss all that is made of weights has the type of what may differ.
            if by_type is not None and context.current().differentiates_apart:
                raise UndecidedError from None
        return value, by_type


class UndecidedError(ProgramError):
    """A gradient in a loss stands where JAX traces, and no value says whether it is a sum."""

    def __init__(self) -> None:
        super().__init__(
            "Under rx.config.run_eagerly, a loss has a gradient in a function that JAX traces as a whole: by "
            "jax.checkpoint, or as a branch of jax.lax.cond. There it is not known which values are equal on all "
            "replicas, and so which gradients are sums over them. Call rx.config.run_eagerly(False) for this step, or "
            "take the gradient outside of that function."
        )


def _as_constant(value: jax.Array) -> jax.Array:
    if is_random_key(value):
        with outside_traces():
            data, impl = np.asarray(jax.random.key_data(value)), jax.random.key_impl(value)
        key: jax.Array = jax.random.wrap_key_data(jnp.asarray(data), impl=impl)
        return key
    return jnp.asarray(np.asarray(value))


DIFFERS_NOW = "depends on what each replica does on its own (the branch that it takes, a callback)"


def differs_now(value: jax.Array) -> bool:
    """Returns whether a value that an operation has just computed may differ, by its type or in fact."""
    return REPLICA_AXIS in varying_axes(value) or not _is_same_everywhere(value)


def may_differ(value: jax.Array) -> bool:
    """Returns whether a value that an operation has computed differs; where JAX traces, whether it may by its type."""
    if REPLICA_AXIS not in varying_axes(value):
        return False
    try:
        return not _is_same_everywhere(value)
    except jax.errors.ConcretizationTypeError:
        return True


def _is_same_everywhere(value: jax.Array) -> bool:
    """Returns whether a value of a function that runs operation by operation is equal on all replicas, bit by bit."""
    value = jax.lax.stop_gradient(value)
    if is_random_key(value):
        value = jax.random.key_data(value)
    if jnp.iscomplexobj(value):
        value = jnp.stack([value.real, value.imag])
    if jnp.issubdtype(value.dtype, jnp.inexact):
        value = jax.lax.bitcast_convert_type(value, f"uint{8 * value.dtype.itemsize}")
    rows = jax.lax.all_gather(vary(value, REPLICA_AXIS), REPLICA_AXIS, to="invarying")
    return bool(jnp.all(rows == rows[:1]))
