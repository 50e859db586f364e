"""Assigning a variable: in replicas, outside of them, and row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.compat.jax import is_weak, strongly_typed, vary
from replicax.compat.jax_tracing import is_tracing
from replicax.contracts.called_as import called_as
from replicax.contracts.reduce_op import terms_of
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import lives_elsewhere
from replicax.errors import ProgramError, VariableError
from replicax.runtime import turns
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import Leaf, PyTree
from replicax.values import component_here
from replicax.values.aggregation import VariableAggregation, aggregate
from replicax.values.scattering import Entries, Scattered, aggregate_entries, scattered
from replicax.variables.reading import ReadableVariable, check_owner


class AssignableVariable(ReadableVariable, Scattered):
    """How a variable takes a new value, so that its copies stay equal and its components add up to it."""

    _dtype: np.dtype

    def assign(
        self, value: Leaf, use_locking: object = False, name: object = None, read_value: bool = True
    ) -> jax.Array | None:
        """Replaces the value and returns the new one.

        Args:
            value: Shape and dtype of the variable (or what broadcasting-free conversion to its dtype gives). Of a
                per-replica value each replica of a `strategy.run` takes its component.
            use_locking: Accepted as in TensorFlow, without effect: assignments are never torn apart.
            name: Accepted as in TensorFlow, without effect.
            read_value: Whether to return the new value; otherwise None.

        Raises:
            ReplicaDivergenceError: The value may differ between replicas and the variable has no aggregation.
            VariableError: Shape mismatch, or an assignment that its aggregation gives no meaning to.
        """
        new = self._in_turn(self._assign, value)
        return new if read_value else None

    def _in_turn(self, change: Callable[..., jax.Array], *args: PyTree) -> jax.Array:
        if context.current().frame is None and not lives_elsewhere(self):
            with turns.of_thread(), turns.DISPATCH: return change(*args)  # noqa: E701  # fmt: skip
        return change(*args)

    def _assign(self, value: Leaf) -> jax.Array:
        new = self._converted(value)
        current = context.current()
        check_owner(self.strategy, current.strategy, self.name)
        if current.manual_replicas is not None:
            return self._assign_in_replica(new, current)
        if self.per_replica:
            return self._assign_components(new)
        return self._store(new)

    @called_as("tf.Variable.assign_add")
    def assign_add(
        self, value: Leaf, use_locking: object = False, name: object = None, read_value: bool = True
    ) -> jax.Array | None:
        """Adds `value`; otherwise like `assign`."""
        new = self._in_turn(self._assign_sum, value, jnp.add)
        return new if read_value else None

    @called_as("tf.Variable.assign_sub")
    def assign_sub(
        self, value: Leaf, use_locking: object = False, name: object = None, read_value: bool = True
    ) -> jax.Array | None:
        """Subtracts `value`; otherwise like `assign`."""
        new = self._in_turn(self._assign_sum, value, jnp.subtract)
        return new if read_value else None

    def _assign_sum(self, value: Leaf, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        current = context.current()
        if current.manual_replicas is None and self.per_replica:
            return self._assign_sum_components(value, combine)
        change = self._as_array(value)
        if change.shape != self._shape:
            if not _broadcasts(change.shape, self._shape):
                raise VariableError(f"Variable {self.name!r} has shape {self._shape}, was given shape {change.shape}.")
            change = jnp.broadcast_to(change, self._shape)
        if current.replica is not None and not self.per_replica:
            # The changes are aggregated, not the sums: each replica would count the old value again.
            change = aggregate(change, self.aggregation, current.manual_replicas or 1, self.name)
            check_owner(self.strategy, current.strategy, self.name)
            return self._store(combine(self._read(), change))
        return self._in_turn(self._assign, combine(self._read(), change))

    def _assign_in_replica(self, new: jax.Array, current: context.Context) -> jax.Array:
        if self.per_replica:
            return self._store(vary(new, REPLICA_AXIS))
        # merge_call and update act on all replicas at once: there is nothing left to aggregate there.
        aggregation = self.aggregation if current.replica is not None else VariableAggregation.NONE
        return self._store(aggregate(new, aggregation, current.manual_replicas or 1, self.name))

    def _assign_components(self, new: jax.Array) -> jax.Array:
        replicas = or_null(self.strategy).num_replicas_in_sync
        if self.aggregation is VariableAggregation.NONE:
            raise VariableError(
                f"Variable {self.name!r} has one value per replica and no aggregation: assign it inside strategy.run."
            )
        if self.aggregation is VariableAggregation.SUM:
            self._store(terms_of(new, replicas))
        else:
            self._store(jnp.broadcast_to(new, (replicas, *new.shape)))
        return self.value

    def _assign_sum_components(self, value: Leaf, combine: Callable[[jax.Array, jax.Array], jax.Array]) -> jax.Array:
        if self.aggregation in (VariableAggregation.SUM, VariableAggregation.NONE):
            raise VariableError(
                f"Variable {self.name!r} has a component for each replica (aggregation {self.aggregation.value!r}): "
                "there is no right way to split a change over them. Change it inside strategy.run."
            )
        self._store(combine(self._read(), self._as_array(value)))
        return self.value

    def _scatter(self, op: str, entries: Entries) -> jax.Array:
        return self._in_turn(self._change_entries, op, entries)

    def _change_entries(self, op: str, entries: Entries) -> jax.Array:
        if self.per_replica:
            raise VariableError(
                f"Variable {self.name!r} keeps a component for each replica (synchronization 'on_read'), and has no "
                "scatter methods. Inside strategy.run, assign the whole value: "
                "v.assign(v.value.at[indices].add(updates))."
            )
        current = context.current()
        replicas = current.manual_replicas or 1
        if current.replica is not None and replicas > 1:
            entries = aggregate_entries(op, entries, self.aggregation, replicas, self.name)
        new = scattered(op, self._read(), entries)
        if current.manual_replicas is not None:
            new = aggregate(new, VariableAggregation.NONE, replicas, self.name)
        return self._store(new)

    def _as_array(self, value: Leaf) -> jax.Array:
        component = component_here(value, self.name)
        _check_digits(component, self._dtype, self.name)
        return as_numbers(component, self._dtype, self.name)

    def _converted(self, value: Leaf) -> jax.Array:
        new = self._as_array(value)
        if new.shape != self._shape:
            raise VariableError(f"Variable {self.name!r} has shape {self._shape}, was assigned shape {new.shape}.")
        return new

    def _store(self, raw: jax.Array) -> jax.Array:
        frame = context.current().frame
        if frame is not None:
            return frame.write(self, raw)
        check_not_traced(self.name, raw)
        # One buffer belongs to one variable: programs donate it.
        or_null(self.strategy).placement.initialize(self, raw)
        return raw


def check_not_traced(name: str, value: Leaf) -> None:
    """Checks that a variable is not assigned in a function that JAX traces, where no frame takes the value."""
    # The value would be that of the trace, or the assignment would happen once and never again.
    if isinstance(jnp.array(value) if is_tracing() else value, jax.core.Tracer):
        raise ProgramError(
            f"Variable {name!r} was assigned inside a function that JAX traces (jax.jit, jax.grad, ...). "
            "Decorate that function with @rx.function, or differentiate with rx.value_and_grad."
        )


def _broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))


def _check_digits(value: Leaf, dtype: np.dtype, name: str) -> None:
    """Checks that a variable of integers does not lose digits of what it is given, as in TensorFlow."""
    if not jnp.issubdtype(dtype, jnp.integer) or not isinstance(value, (float, int, np.ndarray, np.generic, jax.Array)):
        return
    given = np.dtype(type(value)) if isinstance(value, (float, int)) else value.dtype
    if np.can_cast(given, dtype):
        return
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        fits = given.kind in "iub" and (is_weak(value) or given.itemsize <= dtype.itemsize)
    else:
        numbers, bounds = np.asarray(value), np.iinfo(dtype)
        whole = numbers.dtype.kind in "iuO" or numbers == np.floor(numbers)  # `10**30` is an object.
        fits = bool(np.all((numbers >= bounds.min) & (numbers <= bounds.max) & whole))
    if not fits:
        raise VariableError(
            f"Variable {name!r} is of {dtype} and was given {value!r:.60} ({given}), of which it would lose digits. "
            f"Round or clip it first, with `np.asarray(...).astype({str(dtype)!r})` if you mean that, or make the "
            f"variable of {given}."
        )


def as_numbers(value: Leaf, dtype: jax.typing.DTypeLike | None, name: str) -> jax.Array:
    """Returns what a variable is given as an array."""
    try:
        return strongly_typed(value, dtype)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise VariableError(
            f"Variable {name!r} takes an array of numbers{'' if dtype is None else f' of dtype {dtype}'}, got "
            f"{type(value).__name__}: {value!r:.100}. ({error})"
        ) from error
