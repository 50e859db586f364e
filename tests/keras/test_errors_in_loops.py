"""An error or an interrupt in a loop of Keras leaves the model with all of its state."""

from __future__ import annotations

import threading

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ContextError
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


class Calling(keras.callbacks.Callback):
    """Calls `work` in another thread after the first step, and waits for it."""

    def __init__(self, work):
        super().__init__()
        self._work, self.error = work, None

    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            thread = threading.Thread(target=self._run)
            thread.start()
            thread.join()

    def _run(self):
        try:
            self._work()
        except rx.errors.ContextError as error:
            self.error = error


@pytest.mark.daily(1)
@pytest.mark.parametrize("loop", ["fit", "predict"])
def test_a_second_thread_is_refused_while_a_model_is_in_a_loop(strategy, loop):
    model, alone = made(strategy, classifier), made(strategy, classifier)
    calling = Calling(lambda: getattr(model, loop)(*((X,) if loop == "predict" else (X, Y))))
    model.fit(X, Y, batch_size=8, verbose=0, shuffle=False, callbacks=[calling])
    assert "one thread at a time" in str(calling.error)
    alone.fit(X, Y, batch_size=8, verbose=0, shuffle=False)
    assert all(np.array_equal(ours, theirs) for ours, theirs in zip(state(model), state(alone), strict=True))
    thread = threading.Thread(target=lambda: model.fit(X, Y, batch_size=8, verbose=0))
    thread.start()
    thread.join()
    assert int(model.optimizer.iterations.value) == 2 * int(alone.optimizer.iterations.value)


def test_models_of_one_strategy_are_fitted_by_a_thread_each(strategy):
    models = [made(strategy, classifier) for _ in range(3)]
    threads = [
        threading.Thread(target=lambda model=model: model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False))
        for model in models[:2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    models[2].fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    for model in models[:2]:
        assert all(np.array_equal(ours, other) for ours, other in zip(state(model), state(models[2]), strict=True))


@pytest.mark.daily(3)
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
    with pytest.raises(rx.errors.ProgramError, match=r"the host's function.*Nothing of this call is stored"):
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


def test_a_model_that_is_compiled_while_it_is_trained_keeps_its_weights():
    class Compiles(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.compile(self.model.optimizer, "mse")

    with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((8, 4), np.float32)
    with pytest.raises(ContextError, match=r"Model\.compile was called while fit runs"):
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[Compiles()])
    assert np.isfinite(model.get_weights()[0]).all()
