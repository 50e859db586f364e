"""What the report does with each model: steps of `fit`, steps of a loop, `generate`; and the same without replicax."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx
from tests.hub.backbones import Backbone, prompts

BATCH, ROWS, RANK, RATE = 16, 40, 4, 1e-3  # two full batches and one of half the rows

Losses = list[float]


def batches(case: Backbone) -> Iterator[tuple[Any, Any]]:
    inputs, labels = case.rows(ROWS)
    for first in range(0, ROWS, BATCH):
        yield jax.tree.map(lambda array, first=first: array[first : first + BATCH], (inputs, labels))


def loss_of(labels: Any, outputs: Any) -> Any:
    """Returns the loss of each row: of classes, or where a backbone returns several outputs, their mean squares."""
    if isinstance(outputs, dict):
        return sum(jnp.mean(jnp.square(each), axis=tuple(range(1, each.ndim))) for each in outputs.values())
    losses = keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    return jnp.mean(losses, axis=tuple(range(1, losses.ndim)))


class _Noted(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.losses: Losses = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.losses.append(float(logs["loss"]))


def fit(case: Backbone, model: keras.Model) -> Losses:
    """Trains three steps with Keras's own loop; returns the losses that it shows."""
    inputs, labels = case.rows(ROWS)
    noted = _Noted()
    if case.task is None:
        outputs = jax.eval_shape(lambda: model.stateless_call(*_values(model), inputs)[0])
        labels = {name: np.zeros(output.shape, "float32") for name, output in outputs.items()}
        model.compile(keras.optimizers.Adam(RATE), dict.fromkeys(outputs, "mse"))
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        kwargs = {"sampler": "greedy"} if case.generates else {}
        model.compile(optimizer=keras.optimizers.Adam(RATE), loss=loss, weighted_metrics=[], **kwargs)
    model.fit(inputs, labels, batch_size=BATCH, shuffle=False, verbose=0, callbacks=[noted])
    return noted.losses


def _values(model: keras.Model) -> tuple[list[Any], list[Any]]:
    return [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]


def adapt(case: Backbone, model: Any) -> None:
    """Lets a loop train adapters instead of weights, where KerasHub knows the layers."""
    if case.adapts:
        keras.utils.set_random_seed(7)
        getattr(model, "backbone", model).enable_lora(RANK)


def loop(case: Backbone, model: Any, strategy: rx.Strategy) -> Losses:
    """Trains three steps in a loop of the user's own."""
    if case.normalizes_batches:
        rx.keras.synchronize_batch_normalization(model)
    with strategy.scope():
        optimizer = keras.optimizers.Adam(RATE)
        optimizer.build(model.trainable_variables)

    def replica_step(inputs: Any, labels: Any, rows: int) -> Any:
        def loss() -> Any:
            return rx.compute_average_loss(loss_of(labels, model(inputs, training=True)), global_batch_size=rows)

        value, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return value

    @rx.function
    def step(inputs: Any, labels: Any, rows: int) -> Any:
        return strategy.reduce("sum", strategy.run(replica_step, args=(inputs, labels, rows)), axis=None)

    losses = []
    counts = [len(labels) for _, labels in batches(case)]
    for rows, (inputs, labels) in zip(counts, strategy.distribute_dataset(list(batches(case))), strict=True):
        losses.append(float(step(inputs, labels, rows)))
    return losses


def loop_by_hand(case: Backbone, model: Any) -> Losses:
    """The same steps on one device, as one writes them with JAX and Keras alone."""
    optimizer = keras.optimizers.Adam(RATE)
    optimizer.build(model.trainable_variables)

    def loss(trained: list[Any], fixed: list[Any], inputs: Any, labels: Any) -> Any:
        outputs, fixed = model.stateless_call(trained, fixed, inputs, training=True)
        return jnp.mean(loss_of(labels, outputs)), fixed

    @jax.jit
    def step(trained: list[Any], fixed: list[Any], state: list[Any], inputs: Any, labels: Any) -> Any:
        (value, fixed), gradients = jax.value_and_grad(loss, has_aux=True)(trained, fixed, inputs, labels)
        trained, state = optimizer.stateless_apply(state, gradients, trained)
        return value, trained, fixed, state

    trained, fixed = _values(model)
    state = [variable.value for variable in optimizer.variables]
    losses = []
    for inputs, labels in batches(case):
        value, trained, fixed, state = step(trained, fixed, state, inputs, labels)
        losses.append(float(value))
    return losses


def generated(case: Backbone, model: Any) -> list[int]:
    """Returns the tokens that a model goes on with, greedily; none where it has no `generate`."""
    if not case.generates:
        return []
    told = model.generate(prompts(3, case.rows), stop_token_ids=None)
    return np.asarray(told.get("token_ids", told.get("decoder_token_ids"))).ravel().tolist()
