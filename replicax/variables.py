"""Variables: state that functions read and assign, kept consistent over replicas.

The rules are those of `tf.distribute` (TensorFlow's `values.py`), with one difference: assigning to a mirrored
variable a value that may differ between replicas is refused at trace time instead of letting the copies drift apart.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.aggregation import VariableAggregation, VariableSynchronization, aggregate, check_aggregation
from replicax.array_like import ArrayLike
from replicax.compat.jax import is_random_key, strongly_typed, vary
from replicax.compat.jax_tracing import is_tracing, outside_traces
from replicax.errors import ProgramError, StrategyMismatchError, VariableError
from replicax.host import Host, host_of
from replicax.migration import Advised, called_as
from replicax.reduce_op import terms_of
from replicax.runtime import turns
from replicax.runtime.devices import device_name
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.scattering import Entries, Scattered, aggregate_entries, scattered
from replicax.typing import Leaf, PyTree
from replicax.values import component_here
from replicax.variable_access import VariableLike

_MOST_SHOWN = 24  # entries of a value that are printed all


class Variable(Advised, ArrayLike, Scattered):  # type: ignore[metaclass] # NumPy's stubs have an ABC there
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
        constraint: A function that Keras optimizers apply to the value after each update.
        per_worker_variable: Whether each worker of a `ParameterServerStrategy` has a copy of its own, which nobody
            trains and nothing keeps equal to the others, and the coordinator one more. A scheduled function uses that
            of the worker which runs it, and need not be given it; `read_all()` returns those of all workers.

    Attributes:
        strategy: The strategy in whose scope the variable was made, or None.
        name: Name for messages.
        trainable: Whether optimizers should train it.
        synchronization: A `VariableSynchronization`.
        aggregation: A `VariableAggregation`.
        constraint: A function that Keras optimizers apply to the value after each update, or None.
        per_worker: As given.

    Raises:
        VariableError: Unknown or contradictory `synchronization` and `aggregation`; a variable of each worker outside
            of the scope of a `ParameterServerStrategy`, or in a step; any variable in a dataset function of a worker.
        ProgramError: `initial_value` depends on a traced value.
    """

    _value: jax.Array

    @called_as("tf.Variable")
    def __init__(
        self,
        initial_value: Leaf | Callable[[], Leaf],
        *,
        trainable: bool | None = None,
        dtype: jax.typing.DTypeLike | None = None,
        synchronization: VariableSynchronization | str = VariableSynchronization.AUTO,
        aggregation: VariableAggregation | str = VariableAggregation.NONE,
        name: str | None = None,
        constraint: Callable[[jax.Array], jax.Array] | None = None,
        per_worker_variable: bool = False,
    ):
        self.name = name = name or "Variable"
        self.constraint = constraint
        self.synchronization = VariableSynchronization.of(synchronization)
        self.aggregation = VariableAggregation.of(aggregation)
        on_read = self.synchronization is VariableSynchronization.ON_READ
        self.trainable = not on_read if trainable is None else bool(trainable)
        self.strategy: Host | None = context.current().strategy
        self.per_worker = bool(per_worker_variable)
        self._check_place(trainable)
        value = _initial(initial_value, dtype, name)
        self._check_declaration(value.dtype)
        self._shape, self._dtype = value.shape, value.dtype
        #: Whether `_value` stacks one component per replica, shape `(num_replicas, ...)`.
        self.per_replica = on_read and host_of(self.strategy).num_replicas_in_sync > 1
        self._initialize(value)
        frame = context.current().frame
        if frame is not None:
            frame.note_made(self)

    def _check_place(self, trainable: bool | None) -> None:
        if context.current().makes_dataset:
            raise VariableError(
                f"Variable {self.name!r} was made in a dataset function of a worker, where no step, checkpoint or "
                "server knows it. Make variables on the coordinator, in the strategy's scope; a dataset function may "
                "keep what it needs in NumPy arrays."
            )
        if not self.per_worker:
            return
        if not host_of(self.strategy).is_asynchronous:
            raise VariableError(
                f"Variable {self.name!r} is to have a copy for each worker (per_worker_variable=True): make it in the "
                f"scope of a ParameterServerStrategy; the strategy is {self.strategy!r}. A value for each replica is "
                "synchronization='on_read'."
            )
        if context.current().frame is not None:
            raise VariableError(
                f"Variable {self.name!r} (per_worker_variable=True) was made in a function that is traced. Make it "
                "once, outside, in the strategy's scope."
            )
        if trainable:
            raise VariableError(f"Variable {self.name!r} (per_worker_variable=True) cannot be trained: leave it out.")
        self.trainable = False

    def _check_declaration(self, dtype: jax.typing.DTypeLike) -> None:
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
        change = jnp.broadcast_to(self._as_array(value), self._shape)
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
        replicas = host_of(self.strategy).num_replicas_in_sync
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
                "scatter methods. Inside strategy.run, assign the whole: v.assign(v.value.at[indices].add(updates))."
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
        return _as_numbers(component_here(value, self.name), self._dtype, self.name)

    def _converted(self, value: Leaf) -> jax.Array:
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
        host_of(self.strategy).placement.initialize(self, raw)
        return raw

    def _initialize(self, value: jax.Array) -> None:
        # Also where a function is being traced: the variable outlives the trace.
        with outside_traces():
            host = host_of(self.strategy)
            if self.per_replica:
                value = jnp.broadcast_to(value, (host.num_replicas_in_sync, *value.shape))
            host.placement.initialize(self, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self._shape

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the value."""
        return self._dtype

    @property
    def device(self) -> str:
        """Name of the device that has the value, such as `"cpu:0"`; of several, the first of this process."""
        devices: set[jax.Device] = self._value.sharding.addressable_devices
        return device_name(min(devices, key=lambda device: device.id))

    def __repr__(self) -> str:
        copies = f", replicas={self.strategy.num_replicas_in_sync}" if self.strategy is not None else ""
        return f"<Variable {self.name!r} shape={self._shape} dtype={self._dtype}{copies}{self._shown_value()}>"

    def _shown_value(self) -> str:
        """Returns the value for messages; nothing where it would have to be fetched or is known only later."""
        if lives_elsewhere(self):
            return f", device={self.device!r}"
        value = getattr(self, "_value", None)
        if context.current().frame is not None or not isinstance(value, jax.Array) or is_random_key(value):
            return ""
        if value.is_deleted() or not (value.is_fully_addressable or value.is_fully_replicated):
            return ""
        what = "components" if self.per_replica else "value"
        with turns.DISPATCH: shown = np.asarray(value)  # noqa: E701  # fmt: skip
        text = np.array2string(shown, separator=", ", threshold=_MOST_SHOWN, edgeitems=2)
        return f", {what}={text}"


def lives_elsewhere(variable: VariableLike) -> bool:
    """Returns whether other processes have a variable's value: it has a lock of its own there, and reading may wait.

    Nobody reads such a variable while it is their turn (`runtime/turns.py`): what they wait for, as when a lost server
    is replaced, has to take turns itself.
    """
    return getattr(variable, "_replicax_is_remote", False)


def check_owner(owner: Host | None, current: Host | None, name: str) -> None:
    """Checks that a variable of strategy `owner` may be used while `current` is the current strategy.

    Raises:
        StrategyMismatchError: Both are strategies, and not the same one.
    """
    if owner is not None and current is not None and owner is not current:
        raise StrategyMismatchError(
            f"Variable {name!r} was created under {owner!r} and used under {current!r}. Create the variables (model, "
            "optimizer, metrics) inside the scope of the strategy that runs them."
        )


def _as_numbers(value: Leaf, dtype: jax.typing.DTypeLike | None, name: str) -> jax.Array:
    try:
        return strongly_typed(value, dtype)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        raise
    except (TypeError, ValueError) as error:
        raise VariableError(
            f"Variable {name!r} takes an array of numbers{'' if dtype is None else f' of dtype {dtype}'}, got "
            f"{type(value).__name__}: {value!r:.100}. ({error})"
        ) from error


def _initial(initial_value: Leaf | Callable[[], Leaf], dtype: jax.typing.DTypeLike | None, name: str) -> jax.Array:
    # A variable may be created while a function is traced; its first value must be a real one even there.
    with outside_traces():
        value = initial_value() if callable(initial_value) else initial_value
        array = value if isinstance(value, jax.core.Tracer) else _as_numbers(value, dtype, name)
    if isinstance(array, jax.core.Tracer):
        raise ProgramError(
            f"The initial value of variable {name!r} depends on values that are only known when the program runs. "
            "Create the variable before the function is traced, or pass a function that computes the value."
        )
    return array
