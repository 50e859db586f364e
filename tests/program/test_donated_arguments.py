"""Arguments that a program may overwrite, where something else has the same array."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx


@pytest.fixture
def strategy():
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(4)])


def start(strategy):
    return strategy.replicate({"w": np.ones(4, np.float32)})["w"]


def test_an_array_that_stands_twice_in_a_donated_argument_is_given_away_once(strategy):
    weights = start(strategy)
    state = {"params": weights, "average": weights}  # as a moving average begins

    def step(state):
        params = state["params"] - 0.5
        return {"params": params, "average": 0.5 * state["average"] + 0.5 * params}

    for _ in range(2):
        state = strategy.run(step, args=(state,), donate_argnums=(0,))
    np.testing.assert_array_equal(state["params"], np.zeros(4))
    np.testing.assert_array_equal(state["average"], np.full(4, 0.375))


def test_an_array_that_is_donated_and_kept_stays(strategy):
    weights = start(strategy)
    result = strategy.run(lambda a, b: a + b, args=(weights, weights), donate_argnums=(0,))
    np.testing.assert_array_equal(result, np.full(4, 2.0))
    np.testing.assert_array_equal(weights, np.ones(4))


@pytest.mark.parametrize("assigns", [True, False])
@pytest.mark.parametrize("kind", [rx.Variable, keras.Variable])
def test_the_value_of_a_variable_of_the_step_stays_its_own(strategy, kind, assigns):
    with strategy.scope():
        variable = kind(np.ones(4, np.float32))

    def step(x):
        if assigns:
            variable.assign(variable + x)
        return variable.value + x

    strategy.run(step, args=(jnp.zeros(4),))
    value = variable.value
    strategy.run(step, args=(value,), donate_argnums=(0,))
    np.testing.assert_array_equal(np.asarray(variable.value), np.full(4, 2.0 if assigns else 1.0))


@pytest.mark.parametrize("value", [np.ones(4, np.float32), 1.0])
def test_arrays_of_numpy_and_numbers_may_stand_twice(strategy, value):
    result = strategy.run(lambda a, b: a + b, args=(value, value), donate_argnums=(0, 1))
    np.testing.assert_array_equal(result, np.full(np.shape(value), 2.0))
