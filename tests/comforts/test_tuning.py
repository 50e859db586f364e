"""A training is prepared as the page about tuning does it: a learning rate, a batch size, averages, and the plots."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx


@pytest.mark.nightly
def test_a_training_is_prepared(tmp_path: Path, mirrored):
    strategy = mirrored(3)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 20)).astype("float32")
    y = x[:, :3].argmax(axis=1)
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(1e-6, momentum=0.9), loss)
    begun = [np.asarray(weight) for weight in model.weights]
    found = rx.tuning.find_learning_rate(model, (x, y), batch_size=24, min_learning_rate=1e-4, steps=40)
    size = rx.tuning.find_batch_size(model, (x, y), memory=2**18, max_batch_size=120)
    for old, new in zip(begun, model.weights, strict=True):
        np.testing.assert_array_equal(old, new)
    assert size % 3 == 0

    rate = rx.tuning.scaled_learning_rate(found.suggestion, batch_size=48, base_batch_size=24, rule="sqrt")
    model.optimizer.learning_rate = rate
    history = model.fit(x, y, batch_size=48, epochs=4, verbose=0)
    assert history.history["loss"][-1] < 0.8 * history.history["loss"][0]

    ema = rx.ExponentialMovingAverage(0.9)
    ema.create(model)
    last = [np.asarray(weight) for weight in model.weights]
    with ema.averaged():
        averaged = model.evaluate(x, y, verbose=0)
    assert averaged == model.evaluate(x, y, verbose=0)  # An average of one value.
    for old, new in zip(last, model.weights, strict=True):
        np.testing.assert_array_equal(old, new)

    found.plot(tmp_path / "rates.png")
    rx.plots.losses(history, path=tmp_path / "losses.svg", dark=True)
    rx.plots.memory_per_device({"weights": model, "optimizer": model.optimizer}, path=tmp_path / "memory.png")
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "losses.svg").read_text().count("<path") > 10
