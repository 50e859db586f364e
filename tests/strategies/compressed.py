"""A small training whose gradients are compressed, for the tests of what compression keeps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx

ROWS, SHAPE = 24, (12, 10)


class Regression:
    """Linear regression by SGD, with the loss divided by the number of rows of the global batch.

    Args:
        strategy: Runs it.
        rate: Learning rate.
        dtype: Of the weights.
    """

    def __init__(self, strategy: rx.Strategy, rate: float = 0.1, dtype: str = "float32"):
        self.strategy = strategy
        with strategy.scope():
            self.w = rx.Variable(np.zeros(SHAPE), dtype=dtype, name="w")
            self.b = rx.Variable(np.zeros(SHAPE[1:]), dtype=dtype, name="b")
            self.unused = rx.Variable(np.zeros(SHAPE), dtype=dtype, name="unused")
        self.variables = [self.w, self.unused, self.b]
        self.rate = rate
        self.step = rx.function(self._step)

    def loss(self, x: Any, y: Any, rows: float = ROWS) -> Any:
        return jnp.sum((x @ self.w.value + self.b.value - y) ** 2) / rows

    def update(self, gradients: Sequence[Any]) -> None:
        for variable, gradient in zip(self.variables, gradients, strict=True):
            if gradient is not None:
                variable.assign_sub(self.rate * gradient)

    def replica_step(self, batch: tuple[Any, Any]) -> Any:
        loss, gradients = rx.value_and_grad(lambda: self.loss(*batch), self.variables)()
        self.update(gradients)
        return loss

    def _step(self, batch: Any) -> Any:
        return self.strategy.reduce("sum", self.strategy.run(self.replica_step, args=(batch,)), axis=None)

    def train(self, batches: Sequence[tuple[Any, Any]]) -> list[float]:
        return [float(self.step(batch)) for batch in self.strategy.distribute_dataset(list(batches))]


class Mlp:
    """A classifier of dense layers, trained by Adam.

    Args:
        strategy: Runs it.
        widths: Sizes of the input, of the hidden layers, and of the output.
        rate: Learning rate.
    """

    def __init__(self, strategy: rx.Strategy, widths: tuple[int, ...], rate: float = 1e-3):
        self.strategy = strategy
        keras.utils.set_random_seed(0)
        with strategy.scope():
            hidden = [keras.layers.Dense(width, activation="relu") for width in widths[1:-1]]
            self.model = keras.Sequential([keras.Input(widths[:1]), *hidden, keras.layers.Dense(widths[-1])])
            self.optimizer = keras.optimizers.Adam(rate)
        self.step = rx.function(lambda batch: strategy.run(self.replica_step, args=(batch,)))

    def replica_step(self, batch: Any) -> None:
        x, y = batch
        variables = self.model.trainable_variables
        per_row = functools.partial(keras.losses.sparse_categorical_crossentropy, from_logits=True)
        rows = len(x) * rx.get_replica_context().num_replicas_in_sync
        _, gradients = rx.value_and_grad(lambda: keras.ops.sum(per_row(y, self.model(x))) / rows, variables)()
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def train(self, x: np.ndarray, y: np.ndarray, steps: int, batch: int) -> None:
        order = np.random.default_rng(0).integers(0, len(x), (steps, batch))
        for part in self.strategy.distribute_dataset((x[rows], y[rows]) for rows in order):
            self.step(part)

    def accuracy(self, x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.argmax(self.model(x), axis=-1) == y))


def data(batches: int, rows: int = ROWS, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(seed)
    weights = random.normal(size=SHAPE)
    xs = [random.normal(size=(rows, SHAPE[0])) for _ in range(batches)]
    return [(x.astype("float32"), (x @ weights).astype("float32")) for x in xs]


def compressed(compression: Any, replicas: int = 2, kind: Callable[..., Any] = rx.MirroredStrategy) -> Any:
    return kind(devices=replicas, communication_options=rx.CommunicationOptions(compression=compression))
