"""What the start of an epoch costs `fit` beside Keras's own, in calls of Python functions."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest

import replicax as rx
from tests.python_calls import calls_in


def calls_of_an_epoch(scope: contextlib.AbstractContextManager[object]) -> float:
    """Returns how many calls an epoch takes beside its steps."""
    with scope:
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(), "mse")
        x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)

        def counted(rows: int, epochs: int) -> int:
            given = {"batch_size": 8, "epochs": epochs, "shuffle": False, "verbose": 0}
            model.fit(x[:rows], x[:rows, :1], **given)  # All is compiled.
            return calls_in(lambda: model.fit(x[:rows], x[:rows, :1], **given))

        short, more, longer = counted(8, 2), counted(8, 7), counted(16, 7)
        epoch, step = (more - short) / 5, (longer - more) / 7
    return epoch - step


@pytest.mark.parametrize("devices", [1, 8])
def test_an_epoch_begins_with_no_more_calls_than_keras(devices):
    start = calls_of_an_epoch(rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)]).scope())
    of_keras = calls_of_an_epoch(contextlib.nullcontext())
    assert start <= of_keras
