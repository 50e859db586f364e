"""Layers that are frozen after `compile`, under a strategy."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError

X = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
Y = X[:, :2]


@pytest.fixture(params=["mirrored", "central storage", "one device"])
def model(request):
    devices = ["cpu:1", "cpu:2", "cpu:3"]
    makers = {
        "mirrored": lambda: rx.MirroredStrategy(devices),
        "central storage": lambda: rx.CentralStorageStrategy(devices, "cpu:0"),
        "one device": lambda: rx.OneDeviceStrategy("cpu:0"),
    }
    with makers[request.param]().scope():
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8), keras.layers.Dense(2)])
        model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    return model


@pytest.mark.daily(1)
def test_a_fit_without_compile_is_keras_own_error_and_loses_nothing(model):
    before = [np.asarray(variable.value) for variable in model.variables]
    model.layers[0].trainable = False
    with pytest.raises(ValueError, match="1:1"):
        model.fit(X, Y, batch_size=8, verbose=0)
    assert all(np.array_equal(a, b.value) for a, b in zip(before, model.variables, strict=True))
    model.compile("adam", "mse")
    model.fit(X, Y, batch_size=8, verbose=0)
    assert np.array_equal(before[0], model.layers[0].kernel.value)
    assert not np.array_equal(before[2], model.layers[1].kernel.value)


@pytest.mark.daily(1)
def test_evaluate_and_predict_need_no_compile(model):
    expected = model.predict(X, verbose=0)
    model.evaluate(X, Y, batch_size=8, verbose=0)
    model.layers[0].trainable = False
    for rows in (20, 7):  # The second kind of batch has a program of its own.
        np.testing.assert_allclose(model.predict(X[:rows], verbose=0), expected[:rows], rtol=1e-5, atol=1e-6)
        loss = model.evaluate(X[:rows], Y[:rows], batch_size=8, verbose=0)
        np.testing.assert_allclose(loss, np.mean((expected[:rows] - Y[:rows]) ** 2), rtol=1e-5)


@pytest.mark.daily(2)
def test_freezing_in_the_middle_of_an_epoch_is_told_before_the_next_kind_of_batch(model):
    layer = model.layers[0]

    class Freeze(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            layer.trainable = False

    model.make_train_function(force=True)  # so that each kind of batch is traced again
    with pytest.raises(ProgramError, match="a layer was frozen or unfrozen"):
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[Freeze()])
    assert all(np.isfinite(variable.value).all() for variable in model.variables)
