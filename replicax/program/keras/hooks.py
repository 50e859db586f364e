"""The hooks in Keras that programs need.

The hooks are installed once, when Keras first takes part in a program. Everything else goes through
`keras.StatelessScope`. These cannot: they concern JAX control flow inside Keras, which traces its body on its own.
Outside of programs the methods do exactly what they did before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.compat.jax import refuse_as_argument
from replicax.compat.jax_tracing import is_tracing
from replicax.contracts.strategy import or_null
from replicax.contracts.variable_access import (
    array_of,
    has_array,
    lives_elsewhere,
    name_of,
    optimizer_check_of,
    was_made,
)
from replicax.errors import ReplicaDivergenceError, VariableError
from replicax.program.keras.makers import note_makers
from replicax.runtime import clock
from replicax.runtime.once import once
from replicax.typing import Leaf, PyTreeFunction
from replicax.values.aggregation import VariableAggregation
from replicax.values.array_like import not_an_array
from replicax.values.equality import difference
from replicax.variables import as_numpy, check_not_traced, lies_in_several_processes

if TYPE_CHECKING:
    import keras

_NAME = 7  # the position of a variable's name among the arguments of `keras.Variable`


@once
def install_keras_hooks() -> None:
    """Wraps the `apply` of optimizers, and how variables are made."""
    import keras

    base: type[keras.optimizers.Optimizer] = keras_door.optimizer_class()
    base.apply = _with_equal_gradients(base.apply)
    optimizer_class = keras.optimizers.LossScaleOptimizer
    optimizer_class.apply = _with_equal_gradients(_with_loss_scale(optimizer_class.apply))
    optimizer_class.stateless_apply = _with_checked_variables(optimizer_class.stateless_apply)
    variable_class: type[keras.Variable] = keras_door.variable_class()
    variable_class.__init__ = _made_once(_with_makers(_with_late_values(variable_class.__init__)))
    variable_class.__new__ = _found_again(variable_class.__new__)
    variable_class.assign = _refused_in_traces(variable_class.assign)
    variable_class.__array__ = _with_shards_of_others(variable_class.__array__)
    keras_door.wrap_first_values(_with_values_of_host)
    explain_variables_to_jax()


@once
def explain_variables_to_jax() -> None:
    """Lets JAX's functions say what to do when they get a Keras variable for an array."""
    import keras

    refuse_as_argument(keras.Variable, not_an_array)


def _with_equal_gradients(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `apply` that first checks that gradients are equal on all replicas."""

    @functools.wraps(original)
    def apply(
        self: keras.optimizers.Optimizer,
        grads: Sequence[jax.Array | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> object:
        _check_optimizer(self, trainable_variables)
        current = context.current()
        if current.replica is not None and (current.manual_replicas or 1) > 1:
            variables = keras_door.trainable_variables_of(self) if trainable_variables is None else trainable_variables
            grads, variables = list(grads), list(variables)
            # An optimizer would refuse others somewhere inside. Where it uses `cond`, the error would be JAX's, about
            # its branches.
            for i, (gradient, variable) in enumerate(zip(grads, variables, strict=False)):
                grads[i] = _checked_equal(gradient, variable)  # Keras says what is wrong with their number
            return original(self, grads, None if trainable_variables is None else variables)
        return original(self, grads, trainable_variables)

    return apply


def _with_checked_variables(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `stateless_apply` that first checks that the optimizer can train its variables."""

    # `fit` calls this method of an optimizer that scales losses, which calls that of the optimizer inside.
    @functools.wraps(original)
    def stateless_apply(self: keras.optimizers.LossScaleOptimizer, *args: object, **kwargs: object) -> object:
        if self.built:
            _check_optimizer(self, None)
        return original(self, *args, **kwargs)

    return stateless_apply


def _check_optimizer(
    optimizer: keras.optimizers.Optimizer, trainable_variables: Sequence[keras.Variable] | None
) -> None:
    """Lets variables that not every optimizer can train refuse this one."""
    variables = keras_door.trainable_variables_of(optimizer) if trainable_variables is None else trainable_variables
    for variable in variables:
        check = optimizer_check_of(variable)
        if check is not None:
            check(optimizer)


def _checked_equal(gradient: jax.Array | None, variable: keras.Variable) -> jax.Array | None:
    if gradient is None or VariableAggregation.of(variable.aggregation) is not VariableAggregation.NONE:
        return gradient
    gradient, why = difference(gradient, refused_if_different=True)
    if why is not None:
        raise ReplicaDivergenceError(name_of(variable), why.reason)
    return gradient


def _with_loss_scale(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `apply` that assigns, in a program, what the optimizer's own `stateless_apply` returns."""

    @functools.wraps(original)
    def apply(
        self: keras.optimizers.LossScaleOptimizer,
        grads: Sequence[jax.Array | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        if context.current().frame is None:
            original(self, grads, trainable_variables)
            return
        if not self.built:
            self.build(list(trainable_variables or ()))
            self.built = True
        known = keras_door.trainable_variables_of(self)
        given = {id(v): g for v, g in zip(trainable_variables or known, grads, strict=True)}
        # Keras assigns variables in the branches of a `cond`, from which a program cannot take them.
        new_trainable, new_own = self.stateless_apply(
            [variable.value for variable in self.variables],
            [given.get(id(variable)) for variable in known],
            [variable.value for variable in known],
        )
        for variable, value in zip((*known, *self.variables), (*new_trainable, *new_own), strict=True):
            variable.assign(value)

    return apply


def _with_late_values(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `__init__` that makes an initializer of a value."""

    @functools.wraps(original)
    def __init__(
        self: keras.Variable,
        initializer: object,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        *args: object,
        **kwargs: object,
    ) -> None:
        # Keras gives variables that are made in a program their values afterwards, but only if a function computes
        # them; some optimizers (Adafactor, Nadam) and layers make a variable of a number. A strategy may cut an array
        # into parts, one for each device; Keras would put all of it on one first.
        is_value = not callable(initializer) and not isinstance(initializer, (str, jax.core.Tracer))
        current = context.current()
        if is_value and (current.frame is not None or current.strategy is not None):
            value = initializer
            if type(value) is not np.ndarray and not isinstance(value, jax.Array):
                with jax.ensure_compile_time_eval():
                    value = np.asarray(keras_door.as_tensor_of(self, initializer, dtype))
            shape, dtype = value.shape, dtype or jax.dtypes.canonicalize_dtype(value.dtype).name
            initializer = functools.partial(constant, value)
        original(self, initializer, shape, dtype, *args, **kwargs)

    return __init__


def _with_values_of_host(original: PyTreeFunction, adopt: PyTreeFunction) -> PyTreeFunction:
    """Returns a maker of first values that lets the strategy make them where it wants to."""

    @clock.section(clock.FIRST_VALUES)
    def first_value(self: keras.Variable, initializer: Callable[..., jax.Array]) -> None:
        # A strategy creates some itself, such as that of a table that no process has whole.
        if or_null(context.current().strategy).creates(self, initializer):
            adopt(self)  # Keras would do so too: its distribution is asked for a layout.
        else:
            original(self, initializer)

    return first_value


def _with_makers(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `__init__` that notes which layers make the variable."""

    @functools.wraps(original)
    def __init__(self: keras.Variable, *args: object, **kwargs: object) -> None:
        # It is known only now: the first value may come later, outside of `build`.
        note_makers(self, keras_door.open_scopes())
        args, kwargs = tuple(map(_own, args)), {name: _own(value) for name, value in kwargs.items()}
        original(self, *args, **kwargs)

    return __init__


def _found_again(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `__new__` that finds a variable of the first call again, in later calls of a model function."""

    def __new__(cls: type[keras.Variable], *args: object, **kwargs: object) -> object:
        def new() -> object:
            return original(cls) if original is object.__new__ else original(cls, *args, **kwargs)

        named = context.current().named_variables
        if named is None or not (args or kwargs):  # Without arguments: a copy is being made.
            return new()
        given = kwargs.get("name", args[_NAME] if len(args) > _NAME else None)
        name = given if isinstance(given, str) else cls.__name__.lower()
        return named.variable(f"{keras_door.name_scope()}/{name}".lstrip("/"), new)

    return __new__


def _made_once(original: PyTreeFunction) -> PyTreeFunction:
    @functools.wraps(original)
    def __init__(
        self: keras.Variable, initializer: object, shape: Sequence[int] | None = None, *args: object, **kwargs: object
    ) -> None:
        if context.current().named_variables is None or not was_made(self):
            original(self, initializer, shape, *args, **kwargs)
        elif shape is not None and tuple(shape) != tuple(self.shape):
            raise VariableError(
                f"Variable {name_of(self)!r} was made with shape {tuple(self.shape)}, and is made again with "
                f"{tuple(shape)}. Its shape must not depend on the number of rows; give layers that are different ones "
                "different names."
            )

    return __init__


def _refused_in_traces(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `assign` that refuses a traced value which would stay in the variable when its trace has ended."""

    @functools.wraps(original)
    def assign(self: keras.Variable, value: Leaf) -> jax.Array:
        # Asking a variable for its array may compute its first value.
        is_traced = is_tracing() or isinstance(value, jax.core.Tracer)
        takes_it = is_traced and has_array(self) and not isinstance(array_of(self), jax.core.Tracer)
        if takes_it and not keras_door.is_in_stateless_scope():
            check_not_traced(name_of(self), value)
        new: jax.Array = original(self, _own(value))
        return new

    return assign


def _own(value: Leaf) -> Leaf:
    """Returns a copy of an array of NumPy: on CPUs JAX may go on in the memory of one that its user changes."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _with_shards_of_others(original: PyTreeFunction) -> PyTreeFunction:
    """Returns `__array__` that first collects the shards that other processes hold."""

    @functools.wraps(original)
    def __array__(
        self: keras.Variable, dtype: np.typing.DTypeLike | None = None, copy: bool | None = None
    ) -> np.ndarray:
        # A variable on servers is read once: the array that it holds is what it reads.
        if not lives_elsewhere(self) and has_array(self) and lies_in_several_processes(array_of(self)):
            return np.array(as_numpy(self, self.value), dtype, copy=copy)
        # Keras's own takes no `copy`, of which NumPy warns.
        return np.array(original(self), dtype, copy=copy)

    return __array__


def constant(value: np.ndarray | jax.Array, shape: Sequence[int], dtype: str | None = None) -> jax.Array:
    """Returns `value`, as an initializer of Keras does when it is given its first argument."""
    return jnp.asarray(value, dtype).reshape(shape)
