"""How Keras variables take part in programs: through Keras's own `keras.StatelessScope`.

Keras asks the innermost stateless scope for the value of each variable that is read, and tells it about each one
that is assigned. `keras_scope` opens a scope that answers from the current frame. Keras is never imported from here
unless the user has done so.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.compat.jax import vary
from replicax.compat.keras_backend import check_keras_backend, keras_is_loaded
from replicax.contracts.strategy import StrategyBase, owner_of
from replicax.contracts.variable_access import VariableLike, array_of, dtype_of
from replicax.errors import ContextError, ProgramError
from replicax.program.frames import VariablesCreatedError
from replicax.program.keras.hooks import constant, explain_variables_to_jax, install_keras_hooks
from replicax.program.library_state import made_equal, replicas_draw_apart, share_of_replica, state_of_random_numbers
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.typing import PyTree
from replicax.values.aggregation import VariableAggregation
from replicax.variables import check_owner

if TYPE_CHECKING:
    import keras

_T = TypeVar("_T")

_MAX_PASSES = 5
_RECURRENT_STATE = "rnn_state"  # what Keras calls the variables of a stateful recurrent layer
_GOLDEN_RATIO = 0x9E3779B1  # 2**32 divided by the golden ratio: multiples of it are spread evenly (Knuth, TAOCP 6.4)


@contextlib.contextmanager
def keras_scope() -> Iterator[keras.StatelessScope | None]:
    """Lets Keras variables read from and write to the current frame; does nothing when Keras is not loaded."""
    if not keras_is_loaded():
        yield None
        return
    # On leaving the outermost scope Keras gives the variables that were created inside it their initial values, so it
    # must be left outside of any JAX trace when variables may be created.
    with _scope_class()(collect_losses=True) as scope:  # Those of `add_loss`, which a layer's `losses` returns.
        yield scope


def is_own_scope(scope: object) -> bool:
    """Returns whether a stateless scope of Keras is that of `keras_scope`."""
    return keras_is_loaded() and isinstance(scope, _scope_class())


def repeat_while_variables_are_created(trace: Callable[[], _T]) -> _T:
    """Returns `trace()`, called again for as long as losses in it create variables."""
    for _ in range(_MAX_PASSES):
        # Outside of the trace: on leaving it Keras initialises the variables that layers have created meanwhile.
        with contextlib.suppress(VariablesCreatedError), keras_scope():
            return trace()
    raise ProgramError(
        f"The function creates new variables every time it is called ({_MAX_PASSES} times by now): it makes a layer, a "
        "model, an optimizer or an rx.Variable itself. Make them once, outside of the function, under the strategy's "
        "scope. (It may build them at its first call, or keep what it makes then.)"
    )


@functools.cache
def _scope_class() -> type:
    import keras

    check_keras_backend()
    install_keras_hooks()

    class ReplicaxScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
        """Answers reads from the current frame and hands assignments to it."""

        is_of_replicax = True

        def get_current_value(self, variable: keras.Variable) -> jax.Array | None:
            current = context.current()
            return None if current.frame is None else _read(variable, current)

        def add_update(self, update: tuple[keras.Variable, jax.Array]) -> None:
            variable, value = update
            _write(variable, value, context.current())

        def __exit__(self, *exception: object, **kwargs: object) -> None:
            # Here Keras gives new variables their first values, which outlive the trace that a caller may be in.
            with jax.ensure_compile_time_eval():
                super().__exit__(*exception, **kwargs)

    return ReplicaxScope


def _read(variable: keras.Variable, current: context.Context) -> jax.Array:
    check_owner(owner_of(variable), current.strategy, variable.path)
    assert current.frame is not None
    value = current.frame.read(variable)
    current.frame.note_read(variable, value)
    if current.replica is None or current.manual_replicas is None:
        return value
    if variable.name == _RECURRENT_STATE:
        return _recurrent_state(variable, value, current.manual_replicas)
    if current.manual_replicas > 1 and _is_seed(variable):
        return _fold_replica_id(value) if replicas_draw_apart(current) else state_of_random_numbers(value, current)
    return share_of_replica(variable, value, current)


def _recurrent_state(variable: keras.Variable, state: jax.Array, replicas: int) -> jax.Array:
    if replicas > 1:
        raise ContextError(
            f"Variable {variable.path!r} is the state of a recurrent layer with stateful=True: one row for each "
            "sequence of the batch, so it belongs to one replica's rows and cannot be mirrored. Use stateful=False and "
            "pass the state on yourself, or Model.fit, which sees the global batch."
        )
    return vary(state, REPLICA_AXIS)


def _write(variable: keras.Variable, value: jax.Array, current: context.Context) -> None:
    if current.frame is None:
        raise ProgramError(f"Variable {variable.path!r} was assigned in a scope that has no program.")
    check_owner(owner_of(variable), current.strategy, variable.path)
    if current.replica is not None:
        value = made_equal(variable, value, _aggregation(variable), current, _as_of_first_replica)
    write = current.frame.write_in_layer if keras_door.is_in_layer_call() else current.frame.write
    write(variable, value)


def _aggregation(variable: keras.Variable) -> VariableAggregation:
    """Returns how differing assignments to a Keras variable are combined."""
    # Keras marks the state that its layers keep (BatchNorm's statistics, seed generators) with no aggregation at all,
    # so its kind is derived from where it is assigned, and from its dtype. Any other state, such as an optimizer's
    # slots, is mirrored: the mean of what differing gradients make of it would hide that they differ.
    declared = VariableAggregation.of(variable.aggregation)
    if declared is not VariableAggregation.NONE or variable.trainable:
        return declared
    if _is_seed(variable):
        return VariableAggregation.ONLY_FIRST_REPLICA
    is_float = jnp.issubdtype(dtype_of(variable), jnp.inexact)
    return VariableAggregation.MEAN if is_float and keras_door.is_in_layer_call() else declared


def _is_seed(variable: keras.Variable) -> bool:
    return not variable.trainable and variable.name == "seed_generator_state"


def _as_of_first_replica(variable: VariableLike, value: jax.Array) -> jax.Array:
    """Returns what a replica makes of its state of a seed generator as the first replica would have it."""
    if not _is_seed(variable) or not replicas_draw_apart(context.current()):
        return value
    return seed_of_replica(value, -jax.lax.axis_index(REPLICA_AXIS))


def _fold_replica_id(state: jax.Array) -> jax.Array:
    """Gives each replica its own random numbers, so that dropout masks differ; replica 0 keeps the state as it is."""
    return seed_of_replica(state, jax.lax.axis_index(REPLICA_AXIS))


def seed_of_replica(state: jax.Array, replica: jax.Array) -> jax.Array:
    """Returns the state of a seed generator as the replica of a number has it; negative numbers go back."""
    return state.at[0].add(replica.astype(state.dtype) * jnp.asarray(_GOLDEN_RATIO, state.dtype))


def give_value(variable: keras.Variable, value: np.ndarray) -> None:
    """Gives a variable of a layer or optimizer a value that outlives the trace in which the variable is made."""
    frame = context.current().frame
    if frame is not None:
        frame.forget(variable)  # what was assigned in this trace, by `build` say
    if array_of(variable) is None:  # Keras computes first values when the traced function has ended.
        keras_door.set_initializer(variable, functools.partial(constant, value))
        return
    with jax.ensure_compile_time_eval():
        keras_door.assign_without_scopes(variable, value)


# Ownership: which strategy's scope a Keras variable was created in.


@contextlib.contextmanager
def keras_ownership(strategy: StrategyBase) -> Iterator[None]:
    """Notes `strategy` as the owner of each Keras variable created inside the `with` block."""
    if not keras_is_loaded():
        yield
        return
    import keras

    install_keras_hooks()  # They note which layer makes a variable; a strategy may see to first values itself.
    previous = keras.distribution.distribution()
    try:
        # Keras asks its active distribution for a layout of every new variable; ours leaves its placement alone.
        keras.distribution.set_distribution(_listener_class()(strategy))
        yield
    finally:
        keras.distribution.set_distribution(previous)


@functools.cache
def _listener_class() -> type:
    import keras

    explain_variables_to_jax()
    distribution_class: type = keras_door.distribution_class()

    class VariableListener(distribution_class):  # type: ignore[misc]  # Keras has no types
        """Marks new variables with their strategy; asks for no layout."""

        def __init__(self, strategy: StrategyBase):
            device = strategy.devices[0]
            mesh = keras.distribution.DeviceMesh((1,), ("replica",), [f"{device.platform}:{device.id}"])
            super().__init__(mesh)
            self._strategy = weakref.ref(strategy)

        def get_variable_layout(self, variable: keras.Variable) -> None:
            variable._replicax_strategy = self._strategy
            strategy = self._strategy()
            if strategy is not None:
                strategy.adopt(variable)

        def get_data_layout(self, data_shape: object) -> None:
            return None

        def get_tensor_layout(self, path: str) -> None:
            return None

        def distribute_dataset(self, dataset: PyTree) -> PyTree:
            return dataset

    return VariableListener
