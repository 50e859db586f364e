"""Moving averages of variables and of pytrees, which live where what they average lives."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

import replicax.context as context
from replicax.checks import is_int, is_real
from replicax.contracts.strategy import owner_of
from replicax.contracts.variable_access import (
    VariableLike,
    array_of,
    dtype_of,
    free_name,
    has_array,
    is_per_replica_variable,
    is_variable,
    name_of,
    shape_of,
)
from replicax.errors import ArgumentError, ContextError, VariableError
from replicax.program.function import function
from replicax.program.storing import store_values
from replicax.typing import Leaf, PyTree
from replicax.variables import Module, Variable


class AveragesState(NamedTuple):
    """The moving averages of a pytree, a pytree itself."""

    averages: PyTree  # in the structure of the tree; those of float16 and bfloat16 are float32
    weight: jax.Array  # how much of them comes from values, float32: below 1 in the first updates of `zero_debias`
    num_updates: jax.Array  # int32


class ExponentialMovingAverage(Module):
    """Moving averages of variables, or of a pytree: `average = decay * average + (1 - decay) * value`.

    They are mirrored, or sharded like the variables that they average, and equal on all replicas. `apply` may be
    called in a step, in `strategy.run` and outside of both. An average begins with the value that its variable has when
    `apply` is traced first (before the step assigns it), or with nothing where `zero_debias` is true. Averages of
    float16 and bfloat16 are kept in float32, since small changes would be lost in the rounding.

    It is a module, so `rx.Checkpoint(ema=ema)` saves and restores it.

    Args:
        decay: How much of an average an update keeps, between 0 and 1: 0.999, say, which looks back some thousand
            steps.
        num_updates: A number of updates `n`, which makes early averages follow faster: the decay is then
            `min(decay, (1 + n) / (10 + n))`. A number, a variable such as `optimizer.iterations`, or True for the
            updates of this object.
        zero_debias: Whether averages begin with zero and are divided by the weight of the values in them, as Adam's
            moments are (Kingma and Ba, 2014, arXiv:1412.6980): the first update makes them the values themselves.
        name: The beginning of the averages' names.

    Attributes:
        decay: As given.
        averages: The average of each variable, by name.

    Raises:
        ArgumentError: `decay` is no number between 0 and 1, or `num_updates` is nothing of the above.

    Example:
        >>> import replicax as rx
        >>> weight = rx.Variable([1.0, 1.0], name="weight")
        >>> ema = rx.ExponentialMovingAverage(decay=0.9)
        >>> ema.apply([weight])
        >>> weight.assign([2.0, 3.0]) is not None
        True
        >>> ema.apply([weight])
        >>> print(ema.average(weight).numpy())
        [1.1 1.2]
        >>> with ema.averaged():
        ...     print(weight.numpy())
        [1.1 1.2]
    """

    def __init__(
        self,
        decay: float,
        num_updates: VariableLike | float | bool | None = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ):
        super().__init__(name)
        if not is_real(decay) or not 0 <= decay <= 1:
            raise ArgumentError(f"`decay` is a number between 0 and 1, such as 0.999, got {decay!r:.100}.")
        if not (num_updates is None or isinstance(num_updates, bool) or is_number(num_updates)):
            raise ArgumentError(
                f"`num_updates` is a number, a variable with one, True for the updates made here, or None, got "
                f"{num_updates!r:.100}."
            )
        self.decay = float(decay)
        self.zero_debias = bool(zero_debias)
        self._tracked = _Tracked(num_updates)
        self.averages: dict[str, Variable] = {}
        self.weight: Variable | None = None
        self.num_updates: Variable | None = None

    # Variables.

    def create(self, variables: PyTree) -> None:
        """Makes averages of variables that have none yet. `apply` does so by itself; before a restore it is needed.

        Args:
            variables: Variables of Keras or `rx.Variable`; or a Keras model or layer, or an `rx.Module`: its trainable
                variables.

        Raises:
            ArgumentError: There is no variable.
            VariableError: A variable is not of floating point, has no value yet, or has one for each replica.
        """
        for variable in _variables_of(variables):
            if self._tracked.average(variable) is None:
                self._create(variable)

    def _create(self, variable: VariableLike) -> None:
        _check(variable)
        owner = owner_of(variable)
        with context.entered(strategy=owner, replica=None, manual_replicas=None):
            if self.weight is None:
                first = 0.0 if self.zero_debias else 1.0
                self.weight = Variable(first, trainable=False, name=f"{self.name}/weight")
                self.num_updates = Variable(0, trainable=False, name=f"{self.name}/num_updates")
            # Strategies that shard know by this name whose layout it has.
            name = free_name(f"{name_of(variable).replace('/', '_')}_average", self.averages, first=1)
            made = Variable(lambda: self._first_value(variable), trainable=False, name=f"{self.name}/{name}")
        self.averages[name] = made
        self._tracked.add(variable, made)

    def _first_value(self, variable: VariableLike) -> jax.Array:
        dtype = _dtype(dtype_of(variable))
        if self.zero_debias:
            return jnp.zeros(shape_of(variable), dtype)
        return array_of(variable).astype(dtype, copy=True)

    def apply(self, variables: PyTree) -> None:
        """Updates the averages of variables with their present values; makes them in the first call.

        All variables are averaged together: each call counts as one update. An average that the first call makes begins
        with the value that its variable has: in a compiled step that is the value before the step, and in code that
        runs as it stands the present one. `create` before the training makes them equal.

        Args:
            variables: As for `create`; the same in each call.

        Raises:
            ArgumentError, VariableError: As for `create`.
        """
        found = _variables_of(variables)
        self.create(found)
        if context.current().frame is None:
            self._tracked.program(found, self._updated)()
        else:
            self._updated(found)

    def _updated(self, variables: Sequence[VariableLike]) -> None:
        assert self.weight is not None and self.num_updates is not None
        weight, rate = self._next(self.weight.value, self.num_updates.value)
        self.weight.assign(weight)
        self.num_updates.assign_add(1)
        for variable in variables:
            average = self._tracked.average(variable)
            assert average is not None
            average.assign(_moved(average.value, variable.value, rate))

    def average(self, variable: VariableLike) -> Variable:
        """Returns the variable with the average of a variable.

        Raises:
            VariableError: There is none: neither `create` nor `apply` has got the variable.
        """
        found = self._tracked.average(variable) if is_variable(variable) else None
        if found is None:
            known = ", ".join(map(repr, list(self.averages)[:3])) or "none yet"
            raise VariableError(
                f"{variable!r:.100} has no average here: pass it to `apply` or `create` first. There are: {known}."
            )
        return found

    def average_name(self, variable: VariableLike) -> str:
        """Returns the name of a variable's average."""
        return self.average(variable).name

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Gives the variables their averages inside a `with` block, for an evaluation; afterwards their values again.

        Values that the block assigns to these variables are dropped.

        Raises:
            ContextError: It is called in a step.
        """
        variables = self._variables_outside("averaged")
        values = [array_of(variable) for variable in variables]
        try:
            self._copy(variables)
            yield
        finally:
            store_values(variables, values)

    def copy_to_variables(self) -> None:
        """Gives the variables their averages for good, at the end of a training.

        Raises:
            ContextError: It is called in a step.
        """
        self._copy(self._variables_outside("copy_to_variables"))

    def _variables_outside(self, call: str) -> list[VariableLike]:
        if context.current().frame is not None or context.current().replica is not None:
            raise ContextError(f"ExponentialMovingAverage.{call} was called in a step. Call it between two steps.")
        return self._tracked.variables()

    def _copy(self, variables: Sequence[VariableLike]) -> None:
        values = []
        for variable in variables:
            old, new = array_of(variable), array_of(self.average(variable))
            values.append(jax.device_put(new.astype(old.dtype, copy=True), old.sharding))
        store_values(variables, values)

    # Pytrees.

    def init(self, tree: PyTree) -> AveragesState:
        """Returns the state of a training in plain JAX: averages of a pytree of arrays.

        Args:
            tree: Parameters. Of leaves that are not of floating point the averages are the newest values.
        """

        def first(leaf: Leaf) -> jax.Array:
            leaf = jnp.asarray(leaf)
            if not _is_float(leaf.dtype):
                return jnp.array(leaf)
            dtype = _dtype(leaf.dtype)
            return jnp.zeros_like(leaf, dtype) if self.zero_debias else leaf.astype(dtype, copy=True)

        return AveragesState(jax.tree.map(first, tree), jnp.float32(not self.zero_debias), jnp.int32(0))

    def update(self, state: AveragesState, tree: PyTree) -> AveragesState:
        """Returns the state after an update, in `jax.jit`, `strategy.run` or outside.

        Args:
            state: The state that `init` or `update` has returned.
            tree: The new values, in the same structure.
        """
        weight, rate = self._next(state.weight, state.num_updates)

        def moved(average: jax.Array, value: Leaf) -> jax.Array:
            return _moved(average, value, rate) if _is_float(average.dtype) else jnp.asarray(value)

        return AveragesState(jax.tree.map(moved, state.averages, tree), weight, state.num_updates + 1)

    def _next(self, weight: jax.Array, own_updates: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Returns the weight of the values in the averages after an update, and the part that is new in them."""
        given = self._tracked.num_updates
        new = jnp.float32(1 - self.decay)
        if given is not None and given is not False:
            count = own_updates if given is True else getattr(given, "value", given)
            count = jnp.asarray(count, jnp.float32)
            new = jnp.maximum(new, 9 / (10 + count))  # 1 - (1 + n) / (10 + n)
        if not self.zero_debias:
            return weight, new
        weight = weight + new * (1 - weight)
        return weight, new / weight


class _Tracked:
    """Which average belongs to which variable, and the user's count."""

    # Slots, so that what a module or checkpoint finds in the attributes are the averages alone.
    __slots__ = ("_averages", "_programs", "num_updates")

    def __init__(self, num_updates: VariableLike | float | bool | None) -> None:
        self.num_updates = num_updates
        self._averages: dict[int, tuple[weakref.ref[VariableLike], Variable]] = {}
        self._programs: dict[tuple[int, ...], Callable[[], None]] = {}

    def add(self, variable: VariableLike, average: Variable) -> None:
        self._averages[id(variable)] = weakref.ref(variable), average

    def average(self, variable: VariableLike) -> Variable | None:
        reference, average = self._averages.get(id(variable), (None, None))
        return average if reference is not None and reference() is variable else None

    def program(
        self, variables: Sequence[VariableLike], update: Callable[[Sequence[VariableLike]], None]
    ) -> Callable[[], None]:
        """Returns the compiled update of the averages of some variables."""
        averages = (self.average(variable) for variable in variables)
        key = tuple(map(id, averages))  # They live as long as this object.
        if key not in self._programs:
            references = [weakref.ref(variable) for variable in variables]
            self._programs[key] = function(
                lambda: update([variable for each in references if (variable := each()) is not None])
            )
        return self._programs[key]

    def variables(self) -> list[VariableLike]:
        """Returns the variables that still exist."""
        return [variable for reference, _ in self._averages.values() if (variable := reference()) is not None]


def is_number(value: object) -> bool:
    """Returns whether a value is a number, or a variable or array that may hold one."""
    return is_real(value) or is_int(value) or is_variable(value) or isinstance(value, jax.Array)


def _moved(average: jax.Array, value: Leaf, rate: jax.Array) -> jax.Array:
    return average + rate.astype(average.dtype) * (jnp.asarray(value, average.dtype) - average)


def _is_float(dtype: jax.typing.DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _dtype(dtype: jax.typing.DTypeLike) -> jax.typing.DTypeLike:
    """Returns the dtype of an average: at least float32."""
    return jnp.promote_types(dtype, jnp.float32)


def _variables_of(given: PyTree) -> list[VariableLike]:
    if is_variable(given):
        return [given]
    several = getattr(given, "trainable_variables", given)
    found = list(several) if isinstance(several, Iterable) and not isinstance(several, (str, bytes)) else []
    wrong = [each for each in found if not is_variable(each)]
    if wrong or not found:
        raise ArgumentError(
            "Averages are of variables: pass a list of them, a Keras model or an rx.Module that has some, got "
            f"{wrong[0] if wrong else given!r:.100}. For pytrees of arrays there are `init` and `update`."
        )
    return found


def _check(variable: VariableLike) -> None:
    if not _is_float(dtype_of(variable)):
        raise VariableError(
            f"Variable {name_of(variable)!r} has dtype {dtype_of(variable)}: only floating point can be averaged."
        )
    if not has_array(variable):
        raise VariableError(
            f"Variable {name_of(variable)!r} has no value yet. Build the model first, or call `create` after its first "
            "step."
        )
    if is_per_replica_variable(variable):
        raise VariableError(
            f"Variable {name_of(variable)!r} has a component for each replica (synchronization 'on_read'); average "
            "what you read from it, in a variable of its own."
        )
