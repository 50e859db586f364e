"""Variables: state that functions read and assign, kept consistent over replicas.

The rules are those of `tf.distribute` (TensorFlow's `values.py`), with one difference: assigning to a mirrored
variable a value that may differ between replicas is refused at trace time instead of letting the copies drift apart.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.array_like import ArrayLike
from replicax.compat import assert_equal_over_axis, is_tracing, strongly_typed, vary
from replicax.equality import Difference, difference
from replicax.errors import ProgramError, ReplicaDivergenceError, StrategyMismatchError, VariableError
from replicax.migration import Advised, called_as
from replicax.named import member_of
from replicax.reduce_op import mean_over, terms_of
from replicax.runtime import turns
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values import is_per_replica


class _Named(enum.Enum):
    @classmethod
    def of(cls, value: Any) -> Any:
        """Returns the member that `value` is or names (any case; None is the default member)."""
        return member_of(cls, "none" if value is None else value, cls.__name__, VariableError)


class VariableSynchronization(_Named):
    """When the copies of a variable are made consistent: at every write, or only when read from outside a replica."""

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"


class VariableAggregation(_Named):
    """How values that replicas assign are combined."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


class Variable(Advised, ArrayLike):  # type: ignore[metaclass] # NumPy's stubs have an ABC there
    """A value that outlives the function that assigns it.

    Under a strategy's scope the variable is *mirrored*: each device holds a copy, and all copies stay equal. With
    `synchronization="on_read"` each replica has a component of its own instead (an accumulator), and reading it
    outside of a replica combines the components by `aggregation`.

    What is assigned outside of a replica is the value that is then read there: a component of a mean is the value, the
    components of a sum share it out so that they add up to it exactly (10 becomes 4, 3, 3). The initial value is every
    component's own, as in tf.distribute: `rx.Variable(10, synchronization="on_read", aggregation="sum")` reads 30 on
    three replicas.

    It takes part in arithmetic and in NumPy's functions like the array that it holds; give `value` to those of JAX.

    Args:
        initial_value: Array, number, or a function without arguments that returns one.
        trainable: Whether optimizers should train it; by default True, and False for `"on_read"`.
        dtype: Dtype of the variable; by default the initial value's.
        synchronization: `"auto"` (the same as `"on_write"`), `"on_write"` or `"on_read"`.
        aggregation: How values that differ between replicas are combined: `"none"` (they are refused), `"sum"`,
            `"mean"` or `"only_first_replica"`.
        name: Name for messages.

    Attributes:
        strategy: The strategy in whose scope the variable was made, or None.
        name: Name for messages.
        trainable: Whether optimizers should train it.
        synchronization: A `VariableSynchronization`.
        aggregation: A `VariableAggregation`.
        constraint: A function that Keras optimizers apply to the value after each update, or None.

    Raises:
        VariableError: Unknown or contradictory `synchronization` and `aggregation`.
        ProgramError: `initial_value` depends on a traced value.
    """

    @called_as("tf.Variable")
    def __init__(
        self,
        initial_value: Any,
        *,
        trainable: bool | None = None,
        dtype: Any = None,
        synchronization: VariableSynchronization | str = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | str = VariableAggregation.NONE,
        name: str = "Variable",
    ):
        self.name = name
        self.constraint: Callable[[Any], Any] | None = None
        self.synchronization = VariableSynchronization.of(synchronization)
        self.aggregation = VariableAggregation.of(aggregation)
        on_read = self.synchronization is VariableSynchronization.ON_READ
        self.trainable = not on_read if trainable is None else bool(trainable)
        self.strategy = context.current().strategy
        value = _initial(initial_value, dtype, name)
        self._check_declaration(value.dtype)
        self._shape, self._dtype = value.shape, value.dtype
        #: Whether `_value` stacks one component per replica, shape `(num_replicas, ...)`.
        self.per_replica = on_read and self.strategy is not None and self.strategy.num_replicas_in_sync > 1
        self._initialize(value)
        frame = context.current().frame
        if frame is not None:
            frame.note_made(self)

    def _check_declaration(self, dtype: Any) -> None:
        if self.synchronization is VariableSynchronization.NONE:
            raise VariableError(f"Variable {self.name!r}: synchronization 'none' is not supported; use 'on_read'.")
        check_aggregation(self.aggregation, dtype, self.name)

    # Reading.

    @property
    def value(self) -> jax.Array:
        """The current value: this replica's inside `strategy.run`, the aggregated one outside of it.

        Raises:
            VariableError: An `"on_read"` variable without aggregation is read outside of a replica.
            StrategyMismatchError: Another strategy is current.
        """
        raw = self._read()
        if not self.per_replica or context.current().manual_replicas is not None:
            return raw
        if self.aggregation is VariableAggregation.SUM:
            return jnp.sum(raw, axis=0, dtype=raw.dtype)
        if self.aggregation is VariableAggregation.MEAN:
            return jnp.mean(raw, axis=0)
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return raw[0]
        raise VariableError(
            f"Variable {self.name!r} has one value per replica and no aggregation, so it has no single value outside "
            "of a replica. Create it with aggregation='sum', 'mean' or 'only_first_replica'."
        )

    def read_value(self) -> jax.Array:
        """Returns `value`; the spelling of tf.Variable."""
        return self.value

    def numpy(self) -> np.ndarray:
        """Returns the current value as a NumPy array."""
        return np.asarray(self.value)

    def _read(self) -> jax.Array:
        current = context.current()
        check_owner(self.strategy, current.strategy, self.name)
        if current.frame is None:
            if lives_elsewhere(self):
                return self._value
            with turns.DISPATCH: return self._value  # noqa: E701  # fmt: skip
        value = current.frame.read(self)
        current.frame.note_read(self, value)
        return value

    # Writing.

    @called_as("tf.Variable.assign")
    def assign(self, value: Any) -> jax.Array:
        """Replaces the value and returns the new one.

        Args:
            value: Shape and dtype of the variable (or what broadcasting-free conversion to its dtype gives).

        Raises:
            ReplicaDivergenceError: The value may differ between replicas and the variable has no aggregation.
            VariableError: Shape mismatch, or an assignment that its aggregation gives no meaning to.
        """
        if context.current().frame is None and not lives_elsewhere(self):
            with turns.of_thread(), turns.DISPATCH: return self._assign(value)  # noqa: E701  # fmt: skip
        return self._assign(value)

    def _assign(self, value: Any) -> jax.Array:
        new = self._converted(value)
        current = context.current()
        check_owner(self.strategy, current.strategy, self.name)
        if current.manual_replicas is not None:
            return self._assign_in_replica(new, current)
        if self.per_replica:
            return self._assign_components(new)
        return self._store(new)

    @called_as("tf.Variable.assign_add")
    def assign_add(self, value: Any) -> jax.Array:
        """Adds `value`; otherwise like `assign`."""
        return self._changed(value, jnp.add)

    @called_as("tf.Variable.assign_sub")
    def assign_sub(self, value: Any) -> jax.Array:
        """Subtracts `value`; otherwise like `assign`."""
        return self._changed(value, jnp.subtract)

    def _changed(self, value: Any, combine: Callable[[Any, Any], jax.Array]) -> jax.Array:
        if context.current().frame is None and not lives_elsewhere(self):
            with turns.of_thread(), turns.DISPATCH: return self._assign_sum(value, combine)  # noqa: E701  # fmt: skip
        return self._assign_sum(value, combine)

    def _assign_sum(self, value: Any, combine: Callable[[Any, Any], jax.Array]) -> jax.Array:
        current = context.current()
        if current.manual_replicas is None and self.per_replica:
            return self._assign_sum_components(value, combine)
        change = jnp.broadcast_to(self._as_array(value), self._shape)
        if current.replica is not None and not self.per_replica:
            # The changes are aggregated, not the sums: each replica would count the old value again.
            change = aggregate(change, self.aggregation, current.manual_replicas or 1, self.name)
            check_owner(self.strategy, current.strategy, self.name)
            return self._store(combine(self._read(), change))
        return self.assign(combine(self._read(), change))

    def _assign_in_replica(self, new: jax.Array, current: context.Context) -> jax.Array:
        if self.per_replica:
            return self._store(vary(new, REPLICA_AXIS))
        # merge_call and update act on all replicas at once: there is nothing left to aggregate there.
        aggregation = self.aggregation if current.replica is not None else VariableAggregation.NONE
        return self._store(aggregate(new, aggregation, current.manual_replicas or 1, self.name))

    def _assign_components(self, new: jax.Array) -> jax.Array:
        replicas = self.strategy.num_replicas_in_sync
        if self.aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"Variable {self.name!r} has one value per replica and no aggregation: assign it inside strategy.run."
            )
        if self.aggregation is VariableAggregation.SUM:
            self._store(terms_of(new, replicas))
        else:
            self._store(jnp.broadcast_to(new, (replicas, *new.shape)))
        return self.value

    def _assign_sum_components(self, value: Any, combine: Callable[[Any, Any], jax.Array]) -> jax.Array:
        if self.aggregation in (VariableAggregation.SUM, VariableAggregation.NONE):
            raise VariableError(
                f"Variable {self.name!r} has a component for each replica (aggregation {self.aggregation.value!r}): "
                "there is no right way to split a change over them. Change it inside strategy.run."
            )
        self._store(combine(self._read(), self._as_array(value)))
        return self.value

    def _as_array(self, value: Any) -> jax.Array:
        if is_per_replica(value):
            raise VariableError(
                f"Variable {self.name!r} was assigned a per-replica value outside of a replica, which would make its "
                "copies differ. Reduce it first: strategy.reduce('sum', value, axis=None)."
            )
        return strongly_typed(value, self._dtype)

    def _converted(self, value: Any) -> jax.Array:
        new = self._as_array(value)
        if new.shape != self._shape:
            raise VariableError(f"Variable {self.name!r} has shape {self._shape}, was assigned shape {new.shape}.")
        return new

    def _store(self, raw: jax.Array) -> jax.Array:
        frame = context.current().frame
        if frame is not None:
            return frame.write(self, raw)
        if isinstance(jnp.copy(raw) if is_tracing() else raw, jax.core.Tracer):
            raise ProgramError(
                f"Variable {self.name!r} was assigned inside a function that JAX traces (jax.jit, jax.grad, ...). "
                "Decorate that function with @rx.function, or differentiate with rx.value_and_grad."
            )
        # One buffer belongs to one variable: programs donate it.
        if self.strategy is None:
            self._value = jnp.copy(raw)
        else:
            self.strategy.placement.initialize(self, raw)
        return raw

    def _initialize(self, value: jax.Array) -> None:
        # Also where a function is being traced: the variable outlives the trace.
        with jax.ensure_compile_time_eval():
            if self.strategy is None:
                self._value = jnp.copy(value)
                return
            if self.per_replica:
                value = jnp.broadcast_to(value, (self.strategy.num_replicas_in_sync, *value.shape))
            self.strategy.placement.initialize(self, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the value."""
        return self._dtype

    def __repr__(self) -> str:
        copies = f", replicas={self.strategy.num_replicas_in_sync}" if self.strategy is not None else ""
        return f"<Variable {self.name!r} shape={self._shape} dtype={self._dtype}{copies}>"


def lives_elsewhere(variable: Any) -> bool:
    """Returns whether other processes have a variable's value: it has a lock of its own there, and reading may wait.

    Nobody reads such a variable while it is their turn (`runtime/turns.py`): what they wait for, as when a lost server
    is replaced, has to take turns itself.
    """
    return getattr(variable, "_replicax_elsewhere", False)


def check_owner(owner: Any, current: Any, name: str) -> None:
    """Checks that a variable of strategy `owner` may be used while `current` is the current strategy.

    Raises:
        StrategyMismatchError: Both are strategies, and not the same one.
    """
    if owner is not None and current is not None and owner is not current:
        raise StrategyMismatchError(
            f"Variable {name!r} was created under {owner!r} and used under {current!r}. Create the variables (model, "
            "optimizer, metrics) inside the scope of the strategy that runs them."
        )


def check_aggregation(aggregation: VariableAggregation, dtype: Any, name: str) -> None:
    """Checks that a variable's values, combined, are of its dtype.

    Raises:
        VariableError: A mean of integers or bools, or a sum of bools.
    """
    if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
        raise VariableError(f"Variable {name!r}: a mean of {dtype} values is not {dtype}; use a float dtype.")
    if aggregation is VariableAggregation.SUM and not jnp.issubdtype(dtype, jnp.number):
        raise VariableError(
            f"Variable {name!r}: a sum of {dtype} values is not {dtype}. To count, use dtype='int32'; to ask whether "
            "any replica has it, count and compare with 0."
        )


def aggregate(value: jax.Array, aggregation: VariableAggregation, replicas: int, name: str) -> jax.Array:
    """Makes a value that replicas assign to a mirrored variable equal on all of them.

    Args:
        value: This replica's value, inside `shard_map`.
        aggregation: The variable's aggregation.
        replicas: Number of replicas.
        name: The variable's name, for messages.

    Returns:
        The value to store, typed as equal on all replicas.

    Raises:
        ReplicaDivergenceError: The value may differ and `aggregation` is NONE.
        VariableError: The value is equal already and would be summed, that is, multiplied by the number of replicas.
    """
    sums = aggregation is VariableAggregation.SUM and replicas > 1
    value, why = difference(value, refused_if_equal=sums)
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
    if aggregation is VariableAggregation.SUM:
        return jax.lax.psum(value, REPLICA_AXIS)
    if aggregation is VariableAggregation.MEAN:
        return mean_over(REPLICA_AXIS, value)
    if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
        return first_replica(value)
    raise ReplicaDivergenceError(name, why.reason)


def first_replica(value: jax.Array) -> jax.Array:
    """Returns replica 0's `value` on every replica."""
    mine = jax.lax.axis_index(REPLICA_AXIS) == 0
    if jnp.issubdtype(value.dtype, jnp.bool_):
        return first_replica(value.astype(jnp.uint8)).astype(bool)
    return jax.lax.psum(jnp.where(mine, value, jnp.zeros_like(value)), REPLICA_AXIS)


def _initial(initial_value: Any, dtype: Any, name: str) -> jax.Array:
    # A variable may be created while a function is traced; its first value must be a real one even there.
    with jax.ensure_compile_time_eval():
        value = initial_value() if callable(initial_value) else initial_value
        array = strongly_typed(value, dtype)
    if isinstance(array, jax.core.Tracer):
        raise ProgramError(
            f"The initial value of variable {name!r} depends on values that are only known when the program runs. "
            "Create the variable before the function is traced, or pass a function that computes the value."
        )
    return array
