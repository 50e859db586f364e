"""`Model.fit` on a network of Keras: Keras's own, under `keras.distribution.DataParallel`, and under our strategy."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import keras
import numpy as np
import problem


class Fit:
    """A compiled model; a step of the contest is an epoch of `fit` over arrays.

    Args:
        scope: The context that the model is made and trained in.
        steps: Steps in an epoch.
        equal_rows: Whether all inputs are one row, which stays in the processor's cache however many there are.
    """

    def __init__(self, scope: Any, steps: int, equal_rows: bool = False):
        self._scope, self._steps = scope, steps
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
        self.fit(self._steps)

    def fit(self, steps: int, epochs: int = 1) -> None:
        """Calls `fit` on so many steps of the data."""
        x, y = (part[: steps * problem.ROWS] for part in self._data)
        with self._scope():
            self._history = self._model.fit(
                x, y, batch_size=problem.ROWS, epochs=epochs, shuffle=self._shuffle, verbose=0
            )

    def wait(self) -> None:
        import jax

        jax.block_until_ready([variable.value for variable in self._model.variables])

    def last(self) -> float:
        """Returns the loss of the last epoch. Later epochs are shuffled, which is `fit`'s default."""
        self._shuffle = True
        return float(self._history.history["loss"][-1])


class Cuts(Fit):
    """The same 40 steps in one epoch, in 20 epochs of a call, and in 20 calls; the differences are what starts cost."""

    def __init__(self, scope: Any):
        super().__init__(scope, 40, equal_rows=True)

    def turn(self) -> dict[str, float]:
        """Returns the milliseconds of an epoch's start, and of a call's beside that."""
        self.wait()
        times = [time.perf_counter()]
        for steps, epochs, calls in ((40, 1, 1), (2, 20, 1), (2, 1, 20)):
            for _ in range(calls):
                self.fit(steps, epochs)
            self.wait()
            times.append(time.perf_counter())
        long, epochs_, calls_ = (end - start for start, end in itertools.pairwise(times))
        return {": epoch": (epochs_ - long) / 19, ": call": (calls_ - long) / 19}


def starts(ours: bool) -> Cuts:
    """Keras's own `fit`, or ours, for the cost of starts."""
    if not ours:
        return Cuts(contextlib.nullcontext)
    import replicax as rx

    return Cuts(rx.MirroredStrategy().scope)


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
