"""An interrupt at any line of replicax, and at any time, in a step: each variable is as before, or each as after it."""

from __future__ import annotations

import contextlib
import pathlib
import random
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from keras.src.backend.common.stateless_scope import get_stateless_scope

import replicax as rx
from replicax.program.flax.variables import flax_state
from replicax.program.keras.state import keras_scope
from replicax.runtime import activity, turns

PACKAGE = str(pathlib.Path(rx.__file__).parent)
ROWS = np.arange(12.0, dtype=np.float32).reshape(6, 2) / 10
STRATEGIES = {
    "mirrored": lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]),
    "central": lambda: rx.CentralStorageStrategy(["cpu:1", "cpu:2"], parameter_device="cpu:0"),
}


class Training:
    """A model with many kinds of state, and ways of making a step."""

    def __init__(self, strategy, rows=ROWS):
        self.strategy, self.rows = strategy, rows
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.layers.Dense(3), keras.layers.BatchNormalization(), keras.layers.Dropout(0.1, seed=1)]
            )
            self.model.build((None, 2))
            self.model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])
            self.counter = rx.Variable(0)
            self.own = rx.Variable(0.0, synchronization="on_read", aggregation="sum")
        (self.batch,) = strategy.distribute_dataset([rows])

    def step(self, rows):
        def loss():
            return rx.compute_average_loss(jnp.sum(self.model(rows, training=True) ** 2, axis=-1))

        _, gradients = rx.value_and_grad(loss, self.model.trainable_variables)()
        self.model.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables, strict=True))
        self.counter.assign_add(1)
        self.own.assign_add(jnp.sum(rows))

    def run(self):
        self.strategy.run(self.step, args=(self.batch,))

    def on_batch(self):
        self.model.train_on_batch(self.rows, self.rows @ np.ones((2, 3), np.float32))

    def variables(self):
        return [*self.model.variables, *self.model.optimizer.variables, self.counter, self.own]

    def values(self):
        """All values but those of the model's metrics, which Keras resets before a step on a batch."""
        for variable in [*self.variables(), *self.model.metrics_variables]:
            value = variable._value
            assert isinstance(value, jax.Array)
            assert not isinstance(value, jax.core.Tracer)
            assert not value.is_deleted()
        return [np.array(variable._value) for variable in self.variables()]

    def like(self, other):
        for own, its in zip(self.variables(), other.variables(), strict=True):
            own._value = jnp.copy(its._value)


class Lines:
    """Counts the lines of replicax (`of` some functions) that run in a `with` block; raises at one of them."""

    def __init__(self, at=None, of=()):
        self.count, self._at, self.of = 0, at, of

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *exception):
        sys.settrace(self._before)

    def _called(self, frame, event, argument):
        is_counted = not self.of or frame.f_code.co_name in self.of
        return self._line if is_counted and frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame, event, argument):
        if event == "line":
            self.count += 1
            if self.count == self._at:
                raise KeyboardInterrupt(f"{frame.f_code.co_filename}:{frame.f_lineno}")
        return self._line


def same(ours, theirs):
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def phase():
    """An interrupt within the lines that end a phase leaves the process in it: the monitor says so, and no more."""
    before = activity.now.at
    yield
    activity.now.at = before


def check(training, twin, make, before, where):
    """The step has been made, or it has not; `twin` follows."""
    after = training.values()
    assert not turns.DISPATCH._is_owned(), where
    assert not turns.of_thread()._is_owned(), where
    if not same(after, before):
        make(twin)
        assert same(after, twin.values()), where
    return after


def pair(name, make, rows=ROWS):
    training, twin = (Training(STRATEGIES[name](), rows) for _ in range(2))
    for each in (training, twin):
        make(each)
        make(each)
    twin.like(training)
    return training, twin


WAYS = {
    "run": (Training.run, ROWS),
    "partial": (Training.run, ROWS[:1]),
    "on_batch": (Training.on_batch, ROWS),
}


@pytest.mark.slow
@pytest.mark.daily(2)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_at_any_line_of_a_step(strategy, way):
    make, rows = WAYS[way]
    training, twin = pair(strategy, make, rows)
    for each in (training, twin):
        make(each)  # What Keras has set meanwhile is looked at once.
    with Lines() as lines:
        make(training)
    make(twin)
    values = training.values()
    assert lines.count > 20
    for at in range(1, lines.count + 1):
        with pytest.raises(KeyboardInterrupt) as caught, Lines(at):
            make(training)
        values = check(training, twin, make, values, str(caught.value))
    make(training)
    make(twin)
    assert same(training.values(), twin.values())


@pytest.mark.parametrize("seed", range(2))
def test_an_interrupt_at_some_line_of_the_first_step(seed):
    """Layers and slots that are made in it may have been made."""
    training, twin = (Training(STRATEGIES["mirrored"]()) for _ in range(2))
    twin.like(training)
    with Lines() as lines:
        twin.run()
    at = random.Random(seed).randint(1, lines.count)
    with contextlib.suppress(KeyboardInterrupt), Lines(at):
        training.run()
    if int(training.counter.numpy()) == 0:
        training.run()
    assert same(training.values(), twin.values())


def test_an_interrupt_at_any_line_that_redirects_variables_of_flax(mirrored):
    nnx = pytest.importorskip("flax.nnx")
    strategy = mirrored(2)

    def redirected():
        with flax_state():
            pass

    def gradient():
        model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
        (found, *_) = strategy.local_results(strategy.run(lambda: nnx.grad(lambda m: jnp.sum(m.kernel[...]))(model)))
        return found

    redirected()
    with Lines() as lines:
        redirected()
    for at in range(1, lines.count + 1):
        with pytest.raises(KeyboardInterrupt) as caught, Lines(at):
            redirected()
        np.testing.assert_array_equal(gradient().kernel[...], np.ones((2, 1)), str(caught.value))
        other = threading.Thread(target=redirected, daemon=True)  # It needs the locks that this one may have kept.
        other.start()
        other.join(30)
        assert not other.is_alive(), str(caught.value)


def test_an_interrupt_at_any_line_that_counts_loops_leaves_none_behind(mirrored):
    with mirrored(2).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")

    def predict():
        return model.predict(ROWS, verbose=0)

    def elsewhere():
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(predict).result(60)  # An error, while a loop runs in this thread.

    expected = elsewhere()
    with Lines(of=("_run_loop", "_counted_loop", "ended")) as lines:
        predict()
    assert lines.count > 10
    for at in range(1, lines.count + 1):
        with pytest.raises(KeyboardInterrupt) as caught, Lines(at, lines.of):
            predict()
        assert np.array_equal(elsewhere(), expected), str(caught.value)


@pytest.mark.nightly
def test_an_interrupt_at_some_line_of_an_eager_step(mirrored, eagerly):
    strategy = mirrored(2)
    with strategy.scope():
        variables = [rx.Variable(float(i)) for i in range(3)]

    def step():
        for variable in variables:
            variable.assign_add(1.0)

    strategy.run(step)
    with Lines() as lines:
        strategy.run(step)
    values = [2.0, 3.0, 4.0]
    for at in random.Random(0).sample(range(1, lines.count - 10), 6):
        with pytest.raises(KeyboardInterrupt), Lines(at):
            strategy.run(step)
        new = [float(variable.numpy()) for variable in variables]
        assert new in (values, [value + 1 for value in values])
        values = new


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_interrupt_at_any_time(strategy):
    make = Training.run
    training, twin = pair(strategy, make)
    values, chosen, interrupts = training.values(), random.Random(1), 0

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, chosen.uniform(1e-5, 2e-3))
                make(training)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            values = check(training, twin, make, values, "interrupted")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupts > 5


def test_keras_is_left_as_it_was_where_an_interrupt_keeps_a_scope_from_being_left():
    def interrupted():
        raise KeyboardInterrupt

    with keras.StatelessScope() as user:
        kept = keras_scope()
        kept.__enter__()
        with pytest.raises(KeyboardInterrupt):
            rx.function(interrupted)()
        found = get_stateless_scope()
        kept.__exit__(None, None, None)  # It would be left when it is collected, in the midst of other tests.
    assert found is user
    assert get_stateless_scope() is None
