"""The demo's training: a custom loop as a user writes it, which any strategy runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import jax

import replicax as rx
from replicax.cli.datasets import NUM_CLASSES, Dataset, Rows
from replicax.typing import PyTree

HIDDEN_UNITS = (700, 500)


class Settings(NamedTuple):
    """How a training goes."""

    epochs: int
    batch_size: int  # global; the last batch of a pass may be smaller
    learning_rate: float
    seed: int = 0  # of the initial weights
    dtype: str = "float32"  # or "float64", which needs JAX's `enable_x64`


class Score(NamedTuple):
    """How well the network did in one pass over some rows."""

    loss: float  # mean cross-entropy over all rows
    accuracy: float  # a fraction of the rows


class Epoch(NamedTuple):
    """The scores of one epoch."""

    number: int  # from 1
    training: Score  # each batch before its update
    testing: Score  # on the test rows, afterwards


def layer_sizes(pixels: int) -> tuple[int, ...]:
    """Returns the number of values in each layer of the network, from a picture to the ten digits."""
    return pixels, *HIDDEN_UNITS, NUM_CLASSES


def count_batches(rows: Rows, batch_size: int) -> int:
    """Returns the number of batches in one pass over `rows`."""
    return math.ceil(len(rows.labels) / batch_size)


class Training:
    """A network with two hidden layers, its optimizer and metrics, under one strategy."""

    def __init__(self, strategy: rx.Strategy, pixels: int, settings: Settings):
        import keras

        keras.utils.set_random_seed(settings.seed)
        self._strategy = strategy
        self._settings = settings
        dtype = settings.dtype
        self._per_example_loss = keras.losses.SparseCategoricalCrossentropy(True, reduction=None, dtype=dtype)
        with strategy.scope():
            self._model = keras.Sequential([keras.Input((pixels,), dtype=dtype)])
            for units in HIDDEN_UNITS:
                self._model.add(keras.layers.Dense(units, "relu", dtype=dtype))
            self._model.add(keras.layers.Dense(NUM_CLASSES, dtype=dtype))
            self._optimizer = keras.optimizers.Adam(settings.learning_rate)
            self._loss = keras.metrics.Mean(dtype=dtype)
            self._accuracy = keras.metrics.SparseCategoricalAccuracy()

    def epochs(self, data: Dataset, on_step: Callable[[jax.Array], None]) -> Iterator[Epoch]:
        """Trains and yields the scores of each epoch; `on_step` gets the mean loss of each batch and of each test."""
        batch_size = self._settings.batch_size
        train = self._strategy.distribute_dataset(tuple(data.train), batch_size=batch_size)
        # No gradients: all rows fit at once, and one program is compiled instead of two.
        test = self._strategy.distribute_dataset(tuple(data.test), batch_size=len(data.test.labels))
        for number in range(1, self._settings.epochs + 1):
            training = self._pass(self._distributed_train_step, train, on_step)
            yield Epoch(number, training, self._pass(self._distributed_test_step, test, on_step))

    def _pass(
        self, step: Callable[[PyTree], jax.Array], batches: Iterable[PyTree], on_step: Callable[[jax.Array], None]
    ) -> Score:
        self._loss.reset_state()
        self._accuracy.reset_state()
        for batch in batches:
            on_step(step(batch))
        return Score(float(self._loss.result()), float(self._accuracy.result()))

    @rx.function
    def _distributed_train_step(self, batch: PyTree) -> jax.Array:
        return self._strategy.reduce("sum", self._strategy.run(self._train_step, args=(batch,)), axis=None)

    @rx.function
    def _distributed_test_step(self, batch: PyTree) -> jax.Array:
        return self._strategy.reduce("sum", self._strategy.run(self._test_step, args=(batch,)), axis=None)

    # The step of one replica, on its shard of a batch.

    def _train_step(self, batch: PyTree) -> jax.Array:
        images, labels = batch

        def average_loss() -> jax.Array:
            return self._average_loss(labels, self._model(images, training=True))

        variables = self._model.trainable_variables
        loss, gradients = rx.value_and_grad(average_loss, variables)()
        self._optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def _test_step(self, batch: PyTree) -> jax.Array:
        images, labels = batch
        return self._average_loss(labels, self._model(images, training=False))

    def _average_loss(self, labels: jax.Array, logits: jax.Array) -> jax.Array:
        """Returns the replica's share of the batch's mean loss, and counts its rows in the metrics."""
        losses = self._per_example_loss(labels, logits)
        self._loss.update_state(losses)
        self._accuracy.update_state(labels, logits)
        return rx.compute_average_loss(losses)
