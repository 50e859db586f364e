"""`Model.fit` on a network of Keras: Keras's own, under `keras.distribution.DataParallel`, and under our strategy."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import problem


class Fit:
    """A compiled model; a call is a `fit` over arrays.

    Args:
        scope: The context that the model is made and trained in.
        steps: Steps in an epoch.
        epochs: Epochs of a call.
    """

    def __init__(self, scope: Any, steps: int, epochs: int):
        self._scope, self._epochs = scope, epochs
        self._data = problem.make_batch(problem.ROWS * steps)
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


def alone(steps: int, epochs: int = 1) -> Fit:
    """Keras's own `fit`, on the default device."""
    return Fit(contextlib.nullcontext, steps, epochs)


def data_parallel(steps: int, epochs: int = 1) -> Fit:
    """Keras's own `fit` on all devices."""
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=keras.distribution.list_devices(), auto_shard_dataset=False)
    )
    return Fit(contextlib.nullcontext, steps, epochs)


def replicax(steps: int, epochs: int = 1, devices: int = 1) -> Fit:
    """`fit` under our strategy."""
    import replicax as rx

    rx.config.set_virtual_devices(devices)
    return Fit(rx.MirroredStrategy().scope, steps, epochs)
