"""Optimizers of tables: each changes only the rows that a step has looked up.

They are pure functions of some rows and their slots, element by element, so that they work on the rows of a device as
on those of a server. Their numbers are those of Keras's optimizers of the same names, for rows that are touched in each
step. A row that no id of a step names keeps its value and its slots; Keras's Adam would let its momentum move it, and
Keras's Ftrl would write it anew from its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.contracts.strategy import or_null, owner_of
from replicax.errors import ArgumentError

if TYPE_CHECKING:
    import keras

#: Slots of rows, by their names: arrays of the rows' shape.
Slots = Mapping[str, jax.Array]
#: `(rows, slots, gradient, step, learning rate) -> (new rows, new slots)`; the first step has number 1.
UpdateRows = Callable[[jax.Array, Slots, jax.Array, jax.Array, jax.Array], tuple[jax.Array, dict[str, jax.Array]]]


class Slot(NamedTuple):
    """An array that an optimizer keeps for a table: a row for each of its rows, with as many columns."""

    name: str
    first_value: float  # of all its elements


class RowOptimizer(NamedTuple):
    """An optimizer of the rows of a table."""

    name: str  # of Keras's class
    slots: tuple[Slot, ...]
    # Works element by element, in the dtype of the rows. These are distinct, and the gradient of each is the sum of
    # what the step has found for it.
    update: UpdateRows
    # `(step) -> float32 scalar`; the first step has number 1. In a program it reads the variable of Keras's optimizer,
    # so that callbacks may change that.
    learning_rate: Callable[[jax.Array], jax.Array]
    adds_up: bool = False  # whether the update of a sum is the sum of the updates: a row may then come several times


def row_optimizer(optimizer: str | keras.optimizers.Optimizer | None) -> RowOptimizer:
    """Makes the optimizer of a table of one of Keras's, or of its name.

    Example:
        >>> row_optimizer("adagrad").slots
        (Slot(name='accumulator', first_value=0.1),)
    """
    import keras

    # As in `keras_rs.layers.TableConfig`, the default is Adam.
    given = keras.optimizers.get("adam" if optimizer is None else optimizer)
    makers: dict[str, Callable[[keras.optimizers.Optimizer], tuple[tuple[Slot, ...], UpdateRows]]]
    makers = {"SGD": _sgd, "Adagrad": _adagrad, "Adam": _adam, "Ftrl": _ftrl}
    name = type(given).__name__
    if type(given) is not getattr(keras.optimizers, name, None) or name not in makers:
        raise ArgumentError(
            f"The optimizer of a table is SGD, Adagrad, Adam or Ftrl of keras.optimizers, got {name}: others have no "
            "update that leaves untouched rows alone. The rest of the model may have any optimizer."
        )
    _check_options(given, name)
    given = _in_scope(given)
    slots, update = makers[name](given)
    return RowOptimizer(name, slots, update, lambda step: _learning_rate(given, step), adds_up=name == "SGD")


def _in_scope(optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
    """Returns an optimizer whose learning rate servers have: one like it if it was made outside of the scope."""
    strategy = context.current().strategy
    if not or_null(strategy).is_asynchronous or all(owner_of(each) is strategy for each in optimizer.variables):
        return optimizer
    return type(optimizer).from_config(optimizer.get_config())


def _check_options(optimizer: keras.optimizers.Optimizer, name: str) -> None:
    unset: dict[str, tuple[object, ...]] = {
        "clipnorm": (None,),
        "global_clipnorm": (None,),
        "clipvalue": (None,),
        "weight_decay": (None, 0.0),
        "use_ema": (False,),
        "loss_scale_factor": (None,),
        "gradient_accumulation_steps": (None,),
        "momentum": (0.0,),
        "nesterov": (False,),
        "amsgrad": (False,),
        "l2_shrinkage_regularization_strength": (0.0,),
    }
    for option, allowed in unset.items():
        value = getattr(optimizer, option, allowed[0])
        if value not in allowed:
            raise ArgumentError(
                f"The optimizer of a table is {name} with {option}={value!r}, but a table's optimizer has no "
                f"{option}: leave it at {allowed[0]!r}. keras_rs does not support it for tables either."
            )


def _learning_rate(optimizer: keras.optimizers.Optimizer, step: jax.Array) -> jax.Array:
    rate = keras_door.learning_rate_of(optimizer)
    # Keras counts from zero the steps that were made before.
    return jnp.asarray(rate(step - 1) if callable(rate) else rate, jnp.float32)


def _sgd(optimizer: keras.optimizers.SGD) -> tuple[tuple[Slot, ...], UpdateRows]:
    del optimizer

    def update(
        rows: jax.Array, slots: Slots, gradient: jax.Array, step: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        del slots, step
        return rows - learning_rate.astype(rows.dtype) * gradient, {}

    return (), update


def _adagrad(optimizer: keras.optimizers.Adagrad) -> tuple[tuple[Slot, ...], UpdateRows]:
    epsilon = float(optimizer.epsilon)

    def update(
        rows: jax.Array, slots: Slots, gradient: jax.Array, step: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Duchi et al., "Adaptive Subgradient Methods", 2011."""
        del step
        accumulator = slots["accumulator"] + gradient * gradient
        change = learning_rate.astype(rows.dtype) * gradient / jnp.sqrt(accumulator + epsilon)
        return rows - change, {"accumulator": accumulator}

    return (Slot("accumulator", float(optimizer.initial_accumulator_value)),), update


def _adam(optimizer: keras.optimizers.Adam) -> tuple[tuple[Slot, ...], UpdateRows]:
    beta_1, beta_2, epsilon = (float(each) for each in (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon))

    def update(
        rows: jax.Array, slots: Slots, gradient: jax.Array, step: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Kingma and Ba, "Adam", 2015; the step is that of the table, also for a row that is touched rarely."""
        count = step.astype(jnp.float32)
        rate = learning_rate * jnp.sqrt(1 - jnp.power(beta_2, count)) / (1 - jnp.power(beta_1, count))
        momentum = slots["momentum"] + (gradient - slots["momentum"]) * (1 - beta_1)
        velocity = slots["velocity"] + (gradient * gradient - slots["velocity"]) * (1 - beta_2)
        change = momentum * rate.astype(rows.dtype) / (jnp.sqrt(velocity) + epsilon)
        return rows - change, {"momentum": momentum, "velocity": velocity}

    return (Slot("momentum", 0.0), Slot("velocity", 0.0)), update


def _ftrl(optimizer: keras.optimizers.Ftrl) -> tuple[tuple[Slot, ...], UpdateRows]:
    power = -float(optimizer.learning_rate_power)
    l1, l2 = float(optimizer.l1_regularization_strength), float(optimizer.l2_regularization_strength)
    beta = float(optimizer.beta)

    def update(
        rows: jax.Array, slots: Slots, gradient: jax.Array, step: jax.Array, learning_rate: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """McMahan et al., "Ad Click Prediction", 2013."""
        del step
        rate = learning_rate.astype(rows.dtype)
        before = slots["accumulator"]
        accumulator = before + gradient * gradient
        grown = jnp.power(accumulator, power)
        linear = slots["linear"] + (gradient - (grown - jnp.power(before, power)) / rate * rows)
        quadratic = grown / rate + 2 * (l2 + beta / (2.0 * rate))
        new_rows = (jnp.clip(linear, -l1, l1) - linear) / quadratic
        return new_rows, {"accumulator": accumulator, "linear": linear}

    return (Slot("accumulator", float(optimizer.initial_accumulator_value)), Slot("linear", 0.0)), update


def updated_rows(
    optimizer: RowOptimizer, rows: jax.Array, slots: Slots, gradient: jax.Array, step: jax.Array, rate: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Returns what `optimizer.update` does, in the dtypes that the rows and the slots have."""
    new_rows, new_slots = optimizer.update(rows, slots, gradient.astype(rows.dtype), step, rate)
    return new_rows.astype(rows.dtype), {name: value.astype(slots[name].dtype) for name, value in new_slots.items()}
