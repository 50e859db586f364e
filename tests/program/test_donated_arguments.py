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


@pytest.mark.parametrize("donate", [(), (0,)])
def test_what_was_given_away_is_refused_everywhere(strategy, tmp_path, donate):
    """Over several devices, JAX's compiled calls would end the process."""

    def step(weights, x):
        return weights + x

    kept, given = start(strategy), start(strategy)
    manager = rx.CheckpointManager(tmp_path, objects={"w": given})
    for _ in range(2):  # Compiled, with and without donation; a save has copied once.
        strategy.run(step, args=(kept, 1.0))
    manager.save(1)
    strategy.run(step, args=(given, 1.0), donate_argnums=(0,))
    with pytest.raises(rx.errors.ArgumentError, match=r"'step' is an array of shape \(4,\) whose memory"):
        strategy.run(step, args=(given, 1.0), donate_argnums=donate)
    with pytest.raises(rx.errors.ArgumentError, match="'w' is an array of shape"):
        manager.save(2)
    manager.wait_until_finished()
    assert manager.all_steps() == [1]
