"""A small classifier that the finders are tried on, in `fit`, in a Keras loop and in plain JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx
from tests.contract.problems import batches

ROWS = 24


def arrays(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*batches(sizes), strict=True)
    return np.concatenate(x), np.concatenate(y)


def model_of(strategy: rx.Strategy, compiled: bool = True) -> keras.Model:
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(16),
                keras.layers.BatchNormalization(),
                keras.layers.Activation("relu"),
                keras.layers.Dense(10),
            ]
        )
        if compiled:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    return model


def loop_of(strategy: rx.Strategy) -> tuple[keras.Model, Any, Callable[[Any], Any]]:
    """Returns a model, its optimizer and the step of its custom loop."""
    with strategy.scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch: Any) -> Any:
        x, y = batch
        loss_fn = lambda: rx.compute_average_loss(per_example(y, model(x, training=True)))  # noqa: E731
        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)))

    return model, optimizer, step


def function_of(strategy: rx.Strategy) -> tuple[Any, Callable[[Any, Any, Any], Any]]:
    """Returns the parameters of a linear model and a step in plain JAX."""
    state = strategy.replicate({"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)})

    def average(params: Any, x: Any, y: Any) -> Any:
        scores = jax.nn.log_softmax(x @ params["w"] + params["b"])
        return rx.compute_average_loss(-jnp.take_along_axis(scores, y[:, None], 1)[:, 0])

    def train_step(params: Any, batch: Any, rate: Any) -> Any:
        loss, gradients = jax.value_and_grad(average)(params, *batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), loss

    def step(params: Any, batch: Any, rate: Any) -> Any:
        params, losses = strategy.run(train_step, args=(params, batch, rate))
        return params, strategy.reduce("sum", losses)

    return state, step


def values_of(model: keras.Model, optimizer: Any) -> list[np.ndarray]:
    metrics = getattr(model, "metrics_variables", [])
    return [np.asarray(variable) for variable in [*model.variables, *optimizer.variables, *metrics]]
