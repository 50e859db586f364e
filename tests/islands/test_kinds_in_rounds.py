"""What becomes of variables of each dtype and declaration in exchanges, on islands that are threads."""

import functools

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.islands.exchange import averaged
from tests.islands.test_strategy import BATCHES, Training
from tests.islands.threads import run_islands

STEPS = 6


def counting(strategy, **declared):
    """Trains, and counts in an integer; returns its own value in the midst of a round and at the end, and the steps."""
    training = Training(strategy)
    with strategy.scope():
        step_no = rx.Variable(np.array(0, "int32"), name="step_no", **declared)
        seen = rx.Variable(np.array(False), name="seen", **declared)

    def step(batch):
        step_no.assign_add(1)
        seen.assign(np.array(True))
        return training.step(batch)

    train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
    found = []
    for batch in strategy.distribute_dataset(BATCHES[: STEPS * strategy.num_islands]):
        train(batch)
        with strategy.own_values():
            found.append(int(step_no.numpy()))
    strategy.synchronize()
    return found, int(step_no.numpy()), bool(seen.numpy()), strategy.steps


@pytest.mark.parametrize(
    ("make", "islands", "declared"),
    [
        (rx.LocalSGDStrategy, 2, {}),
        (rx.DiLoCoStrategy, 3, {}),
        pytest.param(rx.LocalSGDStrategy, 1, {}, marks=pytest.mark.nightly),
        pytest.param(rx.LocalSGDStrategy, 2, {"trainable": False}, marks=pytest.mark.nightly),
    ],
)
def test_an_integer_counts_this_islands_steps(make, islands, declared):
    for found in run_islands(functools.partial(counting, **declared), functools.partial(make, 2), islands):
        assert found == (list(range(1, STEPS + 1)), STEPS, True, STEPS)


def test_a_program_that_assigns_integers_only_is_no_step():
    def body(strategy):
        with strategy.scope():
            calls = rx.Variable(0, name="calls")
        count = rx.function(lambda: strategy.run(lambda: calls.assign_add(1)))
        for _ in range(3):
            count()
        return int(calls.numpy()), strategy.steps

    assert run_islands(body, functools.partial(rx.LocalSGDStrategy, 2)) == [(3, 0)] * 2


def test_integers_assigned_operation_by_operation_are_no_step():
    def body(strategy):
        with strategy.scope():
            calls = rx.Variable(0, name="calls")
        for _ in range(3):
            strategy.run(lambda: calls.assign_add(1))
        return int(calls.numpy()), strategy.steps

    rx.config.run_eagerly(True)
    try:
        assert run_islands(body, functools.partial(rx.LocalSGDStrategy, 2)) == [(3, 0)] * 2
    finally:
        rx.config.run_eagerly(False)


def test_a_sum_counts_the_steps_of_all_islands_once():
    def body(strategy):
        training = Training(strategy)
        with strategy.scope():
            count = rx.Variable(0.0, synchronization="on_read", aggregation="sum", trainable=False, name="count")

        def step(batch):
            count.assign_add(1.0)
            return training.step(batch)

        train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
        for number, batch in enumerate(strategy.distribute_dataset(BATCHES[: STEPS * strategy.num_islands])):
            train(batch)
            if number % 2:
                strategy.synchronize()
        return float(count.numpy())

    assert run_islands(body, functools.partial(rx.LocalSGDStrategy, 2), 2) == [2.0 * STEPS] * 2


def test_the_mean_of_an_integer_is_the_nearest_one():
    means = averaged([jnp.float32([7, -7, 5])], [jnp.float32(4)], [jnp.zeros(3, "int32")])
    assert means[0].tolist() == [2, -2, 1]


def test_a_scale_of_8_bit_floats_takes_no_outer_step():
    def body(strategy):
        training = Training(strategy)
        with strategy.scope():
            scale = keras.Variable(1.0, name="inputs_scale")
        scale.overwrite_with_gradient = True  # as Keras marks it: optimizers assign it what stands for its gradient

        def step(batch):
            scale.assign(2.0 + strategy.island_index)
            return training.step(batch)

        train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
        for batch in strategy.distribute_dataset(BATCHES[:4]):
            train(batch)
        strategy.synchronize()
        return float(scale.numpy())

    assert run_islands(body, functools.partial(rx.DiLoCoStrategy, 2), 2) == [2.5] * 2


@pytest.mark.parametrize(("dtype", "devices"), [("float32", 1), ("float16", 2)])
def test_what_is_declared_a_mean_is_one(dtype, devices):
    def body(strategy):
        training = Training(strategy)
        with strategy.scope():
            level = rx.Variable(
                np.zeros((), dtype), synchronization="on_read", aggregation="mean", trainable=False, name="level"
            )
        own = np.array(10 + 3 * strategy.island_index, dtype)

        def step(batch):
            level.assign(own)
            return training.step(batch)

        train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
        for batch in strategy.distribute_dataset(BATCHES[:4]):
            train(batch)
        strategy.synchronize()
        return float(level.numpy())

    assert run_islands(body, functools.partial(rx.LocalSGDStrategy, 2), 2, devices) == [11.5] * 2


@pytest.mark.parametrize(
    ("dtype", "relative"), [("bfloat16", 0), pytest.param("float32", 1.2e-7, marks=pytest.mark.nightly)]
)
def test_a_value_that_all_islands_have_alike_stays_as_it_is(dtype, relative):
    """A third is no binary number: three thirds of a value in bfloat16 are 0.2 % too much, in each exchange."""
    frozen = jnp.asarray(np.random.default_rng(0).normal(size=100), dtype)

    def body(strategy):
        training = Training(strategy)
        with strategy.scope():
            kept = rx.Variable(frozen, trainable=False, name="kept")
        training.fit(BATCHES * 3)
        strategy.synchronize()
        return strategy.steps, np.asarray(kept.numpy())

    for steps, kept in run_islands(body, functools.partial(rx.LocalSGDStrategy, 1), 3):
        assert steps == 24
        wide = [np.asarray(each, "float64") for each in (kept, frozen)]
        np.testing.assert_allclose(*wide, rtol=relative)
