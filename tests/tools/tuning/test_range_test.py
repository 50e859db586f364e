"""The range test sees the losses of one device on any number of replicas, and leaves everything as it was."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.contract.problems import batches
from tests.contract.strategies import ALL
from tests.tools.tuning.problems import ROWS, arrays, function_of, loop_of, model_of, values_of

EVEN, UNEVEN = (ROWS,) * 6, (ROWS, 23, 7, ROWS, 17)
SEARCH: dict[str, Any] = {"min_learning_rate": 1e-3, "max_learning_rate": 2.0, "steps": 12}


def of_fit(strategy: rx.Strategy, sizes: tuple[int, ...]) -> rx.tuning.LearningRates:
    model = model_of(strategy)
    return rx.tuning.find_learning_rate(model, strategy.distribute_dataset(batches(sizes)), **SEARCH)


def of_loop(strategy: rx.Strategy, sizes: tuple[int, ...]) -> rx.tuning.LearningRates:
    _, optimizer, step = loop_of(strategy)
    dataset = strategy.distribute_dataset(batches(sizes))
    return rx.tuning.find_learning_rate(step, dataset, optimizer=optimizer, **SEARCH)


def of_function(strategy: rx.Strategy, sizes: tuple[int, ...]) -> rx.tuning.LearningRates:
    state, step = function_of(strategy)
    return rx.tuning.find_learning_rate(step, strategy.distribute_dataset(batches(sizes)), state=state, **SEARCH)


WAYS: dict[str, Callable[..., rx.tuning.LearningRates]] = {"fit": of_fit, "loop": of_loop, "function": of_function}


@functools.cache
def of_one_device(way: str, sizes: tuple[int, ...]) -> rx.tuning.LearningRates:
    return WAYS[way](rx.OneDeviceStrategy("cpu:0"), sizes)


def check(way: str, name: str, sizes: tuple[int, ...]) -> None:
    one, many = of_one_device(way, sizes), WAYS[way](ALL[name](), sizes)
    assert many.learning_rates == one.learning_rates
    assert many.diverged == one.diverged
    np.testing.assert_allclose(many.losses, one.losses, rtol=2e-5)
    np.testing.assert_allclose(many.smoothed, one.smoothed, rtol=2e-5)
    assert many.suggestion == one.suggestion


@pytest.mark.slow
@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("way", "name", "sizes"),
    [
        ("fit", "mirrored_3", UNEVEN),
        ("fit", "fully_sharded_8", EVEN),
        ("loop", "mirrored_1", EVEN),
        ("loop", "mirrored_2", UNEVEN),
        ("loop", "mirrored_8", UNEVEN),
        ("function", "mirrored_3", UNEVEN),
    ],
)
def test_losses_are_those_of_one_device(way: str, name: str, sizes: tuple[int, ...]):
    check(way, name, sizes)


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("name", ["mirrored_1", "mirrored_2", "mirrored_3", "mirrored_8", "fully_sharded_3"])
def test_losses_in_every_combination(way: str, name: str, sizes: tuple[int, ...]):
    check(way, name, sizes)


def test_each_loss_is_that_of_its_batch_at_its_learning_rate():
    """The same by hand, in NumPy's double precision."""
    found = of_one_device("function", EVEN)
    w, b, data = np.zeros((64, 10)), np.zeros(10), batches(EVEN) * 2
    for (x, y), rate, loss in zip(data, found.learning_rates, found.losses, strict=False):
        scores = x @ w + b
        scores -= scores.max(1, keepdims=True)
        p = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
        assert loss == pytest.approx(-np.log(p[np.arange(len(y)), y]).mean(), rel=1e-5)
        p[np.arange(len(y)), y] -= 1
        w, b = w - rate * x.T @ p / len(y), b - rate * p.mean(0)
    np.testing.assert_allclose(found.learning_rates, np.geomspace(1e-3, 2.0, 12)[: len(found.losses)])


def test_after_a_test_of_fit_the_training_goes_on_as_if_there_had_been_none(mirrored):
    trained = {}
    x, y = arrays(EVEN)
    for tested in (False, True):
        model = model_of(mirrored(3))
        model.fit(x, y, batch_size=ROWS, verbose=0, shuffle=False)
        before, history = values_of(model, model.optimizer), model.history
        np.random.seed(5)
        random.seed(6)
        if tested:
            rx.tuning.find_learning_rate(model, (x, y), batch_size=ROWS, **SEARCH)
            for old, new in zip(before, values_of(model, model.optimizer), strict=True):
                np.testing.assert_array_equal(old, new)
            assert model.history is history
        drawn = np.random.rand(), random.random()
        losses = model.fit(x, y, batch_size=ROWS, verbose=0, epochs=2).history["loss"]
        trained[tested] = [drawn, losses, values_of(model, model.optimizer)]
    (drawn, losses, values), (drawn_tested, losses_tested, values_tested) = trained[False], trained[True]
    assert drawn == drawn_tested
    assert losses == losses_tested
    for one, other in zip(values, values_tested, strict=True):
        np.testing.assert_array_equal(one, other)


def test_after_a_test_of_a_loop_variables_and_data_are_as_before(mirrored):
    strategy = mirrored(2)
    model, optimizer, step = loop_of(strategy)
    dataset = strategy.distribute_dataset(batches(EVEN))
    iterator = iter(dataset)
    step(next(iterator))
    before, place = values_of(model, optimizer), dataset.get_state()
    rx.tuning.find_learning_rate(step, dataset, optimizer=optimizer, **SEARCH)
    for old, new in zip(before, values_of(model, optimizer), strict=True):
        np.testing.assert_array_equal(old, new)
    assert dataset.get_state() == place
    assert float(optimizer.learning_rate) == pytest.approx(0.05)


def test_an_error_in_the_midst_leaves_no_trace(mirrored):
    strategy = mirrored(2)
    model, optimizer, step = loop_of(strategy)

    def data() -> Any:
        yield from batches(EVEN[:2])
        raise OSError("the disk is gone")

    class Failing:
        __iter__ = staticmethod(lambda: iter(strategy.distribute_dataset(data)))

    before = values_of(model, optimizer)
    with pytest.raises(OSError, match="the disk is gone"):
        rx.tuning.find_learning_rate(step, Failing(), optimizer=optimizer, **SEARCH)
    for old, new in zip(before, values_of(model, optimizer), strict=False):
        np.testing.assert_array_equal(old, new)


def test_a_state_whose_buffers_the_step_takes_is_still_there():
    state = jnp.zeros(2)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(w: Any, x: Any, rate: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean((x @ w - 1) ** 2))(w)
        return w - rate * gradient, loss

    rx.tuning.find_learning_rate(step, [jnp.ones((4, 2))], state=state, steps=10)
    np.testing.assert_array_equal(state, [0, 0])


def test_a_loss_that_diverges_ends_the_test():
    def step(w: Any, x: Any, rate: Any) -> Any:
        return w * (1 + 100 * rate), w + x

    found = rx.tuning.find_learning_rate(step, [np.float32(0)], state=np.float32(1), steps=100)
    assert found.diverged
    assert len(found.losses) < 100
    assert found.smoothed[-1] > 4 * min(found.smoothed)


def test_a_loss_that_is_high_in_the_first_steps_ends_nothing():
    def step(w: Any, x: Any, rate: Any) -> Any:
        del rate
        return w + 1, jnp.where(w == 1, 12.0, 1.0) + 0 * x

    found = rx.tuning.find_learning_rate(step, [np.float32(0)], state=np.float32(0), steps=30)
    assert not found.diverged
    assert len(found.losses) == 30


@pytest.mark.parametrize(
    ("least", "most", "words"),
    [(1e-9, 1e-8, "The loss hardly falls, from 4 to 4: .*larger `max_learning_rate`"), (1e-3, 1e-1, None)],
)
def test_a_range_that_is_of_no_use_is_told(caplog: pytest.LogCaptureFixture, least: float, most: float, words: str):
    def step(w: Any, x: Any, rate: Any) -> Any:
        return w - rate * 2 * (w - 2), (w - 2) ** 2 + x

    found = rx.tuning.find_learning_rate(
        step, [np.float64(0)], state=np.float64(0), min_learning_rate=least, max_learning_rate=most
    )
    assert (found.remark is None) == (words is None)
    assert [record.message for record in caplog.records] == [found.remark] * (words is not None)
    if words is not None:
        assert re.match(words, str(found.remark))
        assert str(found.remark) in str(found)


def test_what_does_not_fit_is_said(mirrored):
    strategy = mirrored(2)
    _, optimizer, step = loop_of(strategy)
    dataset = strategy.distribute_dataset(batches(EVEN))
    find = rx.tuning.find_learning_rate
    with pytest.raises(rx.errors.ArgumentError, match="goes with its `optimizer`"):
        find(step, dataset)
    with pytest.raises(rx.errors.ArgumentError, match=r"max_learning_rate=0\.1"):
        find(step, dataset, optimizer=optimizer, min_learning_rate=1, max_learning_rate=0.1)
    with pytest.raises(rx.errors.ArgumentError, match="an iterator"):
        find(step, iter(batches(EVEN)), optimizer=optimizer)
    with pytest.raises(rx.errors.ArgumentError, match="is not compiled"):
        find(model_of(strategy, compiled=False), arrays(EVEN))
    with pytest.raises(rx.errors.ArgumentError, match="outside of a strategy's scope"):
        find(keras.Sequential([keras.layers.Dense(1)]), arrays(EVEN))
    with pytest.raises(rx.errors.ArgumentError, match=r"one number.*strategy\.reduce"):
        find(lambda w, x, rate: (w, np.ones(3)), dataset, state=0.0)
    with pytest.raises(rx.errors.BatchError, match="0 step"):
        find(lambda w, x, rate: (w, np.nan), dataset, state=0.0)
    with pytest.raises(rx.errors.BatchError, match="Pass 1 over the dataset had no batch"):
        find(lambda w, x, rate: (w, 1.0), [], state=0.0)
    scheduled = keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10))
    with pytest.raises(rx.errors.ArgumentError, match="has a schedule"):
        find(step, dataset, optimizer=scheduled)
    with pytest.raises(rx.errors.ContextError, match="train synchronously"), rx.LocalSGDStrategy(2).scope():
        find(step, dataset, optimizer=optimizer)
