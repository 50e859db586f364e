"""An error or an interrupt in a loop of Keras leaves the model with all of its state."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from tests.keras.comparing import X, Y, classifier, made

STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: rx.CentralStorageStrategy(["cpu:1", "cpu:2"], parameter_device="cpu:0"),
}


@pytest.fixture(params=STRATEGIES)
def strategy(request):
    return STRATEGIES[request.param]()


def state(model):
    values = [variable._value for variable in [*model.variables, *model.optimizer.variables, *model.metrics_variables]]
    assert not any(value is None or value.is_deleted() for value in values)
    return [np.array(value) for value in values]


class Failing(keras.callbacks.Callback):
    def __init__(self, method, error):
        super().__init__()

        def fail(*args, **kwargs):
            raise error

        setattr(self, method, fail)


@pytest.mark.parametrize(("loop", "method"), [("fit", "train"), ("evaluate", "test"), ("predict", "predict")])
def test_an_interrupt_between_steps(strategy, loop, method):
    error = KeyboardInterrupt()
    model = made(strategy, classifier)
    model.fit(X, Y, batch_size=8, verbose=0)
    data = (X,) if loop == "predict" else (X, Y)
    with pytest.raises(KeyboardInterrupt):
        getattr(model, loop)(*data, batch_size=8, verbose=0, callbacks=[Failing(f"on_{method}_batch_end", error)])
    assert all(np.isfinite(value).all() for value in state(model))
    model.fit(X, Y, batch_size=8, verbose=0)


class CallsHost(keras.Sequential):
    fails = ()

    def train_step(self, state, data):
        (x, y) = data[:2]

        def on_host(x):
            if self.fails:
                raise ValueError("the host's function")
            return x

        return super().train_step(state, (jax.pure_callback(on_host, x, x, vmap_method="sequential"), y))


def test_a_function_of_the_host_that_fails_in_a_step():
    """On one device: of several, XLA would call it on one, and the others would wait for that until XLA gives up."""
    with rx.OneDeviceStrategy("cpu:1").scope():
        model = CallsHost([keras.layers.Dense(3)])
        model.compile(keras.optimizers.Adam(0.1), "mse")
    model.fit(X, X[:, :3], batch_size=len(X), verbose=0)
    before = state(model)[:-1]  # Without the mean of the loss, which each epoch resets.
    model.fails = (True,)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="the host's function"):
        model.fit(X, X[:, :3], batch_size=len(X), verbose=0)
    for value, expected in zip(state(model), before, strict=False):
        if value.ndim:
            np.testing.assert_array_equal(value, expected)
    model.fails = ()
    model.fit(X, X[:, :3], batch_size=len(X), verbose=0)
    assert int(model.optimizer.iterations.value) == 2


def test_a_model_whose_state_is_lost_says_what_to_do(strategy):
    model = made(strategy, classifier)
    model.fit(X, Y, batch_size=8, verbose=0)
    model.trainable_variables[0]._value.delete()
    with pytest.raises(rx.errors.ProgramError, match=r"variables are lost .*kernel.*Restore them"):
        model.train_on_batch(X, Y)
