"""`Model.fit` on a network of Keras: Keras's own, under `keras.distribution.DataParallel`, and under our strategy."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import problem


class Fit:
    """A compiled model; a step of the contest is one or more calls of `fit` over arrays.

    Args:
        scope: The context that the model is made and trained in.
        steps: Steps in an epoch.
        epochs: Epochs of a call of `fit`.
        calls: Calls of `fit`.
        equal_rows: Whether all inputs are one row, which stays in the processor's cache however many there are.
    """

    def __init__(self, scope: Any, steps: int, epochs: int = 1, calls: int = 1, equal_rows: bool = False):
        self._scope, self._epochs, self._calls = scope, epochs, calls
        x, y = problem.make_batch(problem.ROWS * steps)
        self._data = (np.broadcast_to(x[:1], x.shape) if equal_rows else x, y)
        self._shuffle = False
        with scope():
            layers = [keras.layers.Dense(size, activation="relu") for size in problem.SIZES[1:-1]]
            last = keras.layers.Dense(problem.SIZES[-1])
            self._model = keras.Sequential([keras.Input(problem.SIZES[:1]), *layers, last])
            self._model.set_weights(problem.flat_weights())
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            optimizer = keras.optimizers.Adam(problem.LEARNING_RATE, epsilon=problem.EPSILON)
            self._model.compile(optimizer, loss)
        self._history: Any = None

    def __call__(self) -> None:
        with self._scope():
            for _ in range(self._calls):
                self._history = self._model.fit(
                    *self._data, batch_size=problem.ROWS, epochs=self._epochs, shuffle=self._shuffle, verbose=0
                )

    def wait(self) -> None:
        import jax

        jax.block_until_ready([variable.value for variable in self._model.variables])

    def last(self) -> float:
        """Returns the loss of the last epoch. Later epochs are shuffled, which is `fit`'s default."""
        self._shuffle = True
        return float(self._history.history["loss"][-1])


def alone(**cut: Any) -> Fit:
    """Keras's own `fit`, on the default device."""
    return Fit(contextlib.nullcontext, **cut)


def data_parallel(**cut: Any) -> Fit:
    """Keras's own `fit` on all devices."""
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False)
    )
    return Fit(contextlib.nullcontext, **cut)


def replicax(devices: int = 1, **cut: Any) -> Fit:
    """`fit` under our strategy."""
    import replicax as rx

    rx.config.set_virtual_devices(devices)
    return Fit(rx.MirroredStrategy().scope, **cut)
