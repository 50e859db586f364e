"""Variables: state that functions read and assign, kept consistent over replicas.

The rules are those of `tf.distribute` (TensorFlow's `values.py`), with one difference: assigning to a mirrored
variable a value that may differ between replicas is refused at trace time instead of letting the copies drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeAlias, cast

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.compat.jax_tracing import outside_traces
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.placement import FirstValueLike
from replicax.contracts.strategy import StrategyBase, or_null
from replicax.contracts.variable_access import was_made
from replicax.errors import InitialValueError, VariableError
from replicax.runtime import clock
from replicax.typing import Leaf
from replicax.values.aggregation import VariableAggregation, VariableSynchronization, check_aggregation
from replicax.variables.assigning import AssignableVariable, as_numbers

#: A first value, or what stands for it until it is computed.
_FirstValue: TypeAlias = jax.Array | FirstValueLike


class Variable(Advised, AssignableVariable):  # type: ignore[metaclass] # NumPy's stubs have an ABC there
    """A value that outlives the function that assigns it.

    Under a strategy's scope the variable is *mirrored*: each device holds a copy, and all copies stay equal. With
    `synchronization="on_read"` each replica has a component of its own instead (an accumulator), and reading it
    outside of a replica combines the components by `aggregation`.

    A value that is assigned outside of a replica is then read there unchanged: each component of a mean is the value,
    and the components of a sum share it out so that they add up to it exactly (10 becomes 4, 3, 3). The initial value
    is every component's own, as in tf.distribute: `rx.Variable(10, synchronization="on_read", aggregation="sum")` reads
    30 on three replicas.

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

    Example:
        >>> strategy = rx.MirroredStrategy()
        >>> with strategy.scope():
        ...     steps = rx.Variable(0, name="steps")
        >>> @rx.function
        ... def step():
        ...     strategy.run(lambda: steps.assign_add(1))
        >>> step()
        >>> int(steps.numpy())
        1
    """

    def __new__(cls, *args: object, name: str | None = None, **kwargs: object) -> Self:
        """Returns a new variable, or that of this name where a model function makes its variables again."""
        named = context.current().named_variables
        if named is None or not (args or kwargs):  # Without arguments: a copy is being made.
            return super().__new__(cls)
        return cast("Self", named.variable(name or "Variable", lambda: super(Variable, cls).__new__(cls)))

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
        if context.current().named_variables is not None and was_made(self):
            self._check_shape_again(initial_value)
            return
        self.name = name = name or "Variable"
        self.constraint = constraint
        self.synchronization = VariableSynchronization.of(synchronization)
        self.aggregation = VariableAggregation.of(aggregation)
        on_read = self.synchronization is VariableSynchronization.ON_READ
        self.trainable = not on_read if trainable is None else bool(trainable)
        self.strategy: StrategyBase | None = context.current().strategy
        self.per_worker = bool(per_worker_variable)
        self._check_place(trainable)
        #: Whether `_value` stacks one component per replica, shape `(num_replicas, ...)`.
        self.per_replica = on_read and or_null(self.strategy).num_replicas_in_sync > 1
        value = self._initial(initial_value, dtype)
        self._check_declaration(value.dtype)
        self._shape, self._dtype = value.shape, value.dtype
        if isinstance(value, jax.Array):
            self._initialize(value)
        else:
            or_null(self.strategy).placement.create(self, value)
        frame = context.current().frame
        if frame is not None:
            frame.note_made(self)

    def _check_shape_again(self, initial_value: Leaf | Callable[[], Leaf]) -> None:
        shape = self._shape if callable(initial_value) else jnp.shape(initial_value)
        if shape != self._shape:
            raise VariableError(
                f"Variable {self.name!r} was made with shape {self._shape}, and is made again with {shape}. Its shape "
                "must not depend on the number of rows; give variables that are different ones different names."
            )

    def _check_place(self, trainable: bool | None) -> None:
        if context.current().makes_dataset:
            raise VariableError(
                f"Variable {self.name!r} was made in a dataset function of a worker, where no step, checkpoint or "
                "server knows it. Make variables on the coordinator, in the strategy's scope; a dataset function may "
                "keep what it needs in NumPy arrays."
            )
        if not self.per_worker:
            return
        if not or_null(self.strategy).is_asynchronous:
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

    def _initial(self, initial_value: Leaf | Callable[[], Leaf], dtype: jax.typing.DTypeLike | None) -> _FirstValue:
        def computed() -> jax.Array:
            value = initial_value() if callable(initial_value) else initial_value
            return value if isinstance(value, jax.core.Tracer) else as_numbers(value, dtype, self.name)

        # A variable may be created while a function is traced; its first value must be a real one even there.
        with outside_traces(), clock.section(clock.FIRST_VALUES):
            value = self._not_computed(computed) or computed()
        if isinstance(value, jax.core.Tracer):
            raise InitialValueError(
                f"The initial value of variable {self.name!r} depends on values that are only known when the program "
                "runs. Create the variable before the function is traced, or pass a function that computes the value."
            )
        return value

    def _not_computed(self, function: Callable[[], jax.Array]) -> FirstValueLike | None:
        """Returns what stands for a first value that the strategy computes where it shall live, if it does so."""
        return None if self.per_replica else or_null(self.strategy).placement.first_value(function)

    def _initialize(self, value: jax.Array) -> None:
        # Also where a function is being traced: the variable outlives the trace.
        with outside_traces():
            host = or_null(self.strategy)
            if self.per_replica:
                value = jnp.broadcast_to(value, (host.num_replicas_in_sync, *value.shape))
            host.placement.initialize(self, value)
