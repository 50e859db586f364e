"""Outer optimizers: DiLoCo's own, Keras's and optax's, and fragments, against NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.islands.outer_optimizers import Nesterov, outer_optimizer
from replicax.islands.rounds import Schedule, cut_evenly
from tests.islands.test_strategy import BATCHES, RATE, Training, body
from tests.islands.threads import run_islands

_random = np.random.default_rng(5)
VALUES = [_random.normal(size=(3, 2)), _random.normal(size=4)]
GRADIENTS = [[_random.normal(size=value.shape) for value in VALUES] for _ in range(4)]


def expected(rate, momentum):
    values, moments = VALUES, [np.zeros_like(value) for value in VALUES]
    for gradients in GRADIENTS:
        moments = [momentum * m + g for m, g in zip(moments, gradients, strict=True)]
        values = [x - rate * (g + momentum * m) for x, m, g in zip(values, moments, gradients, strict=True)]
    return values


@pytest.mark.parametrize("optimizer", [Nesterov(), outer_optimizer(optax.sgd(0.7, 0.9))], ids=["own", "optax"])
def test_a_state_that_grows_keeps_what_belongs_to_each_variable(optimizer):
    values = [jnp.zeros(2), jnp.zeros(2)]
    _, state = optimizer.update([jnp.ones(2), 2 * jnp.ones(2)], optimizer.init(values), values)
    grown = optimizer.grown(state, [1, None, 0], [jnp.zeros(2)] * 3)
    assert [float(leaf[0]) for leaf in jax.tree.leaves(grown)] == [2, 0, 1]


def keras_sgd():
    import keras

    return keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)


@pytest.mark.parametrize(
    "make",
    [lambda: None, Nesterov, keras_sgd, lambda: optax.sgd(0.7, 0.9, nesterov=True)],
    ids=["default", "own", "keras", "optax"],
)
def test_nesterov_momentum_is_the_same_whoever_computes_it(make):
    optimizer = outer_optimizer(make())
    values = [jnp.asarray(value, jnp.float32) for value in VALUES]
    state = optimizer.init(values)
    for gradients in GRADIENTS:
        values, state = optimizer.update([jnp.asarray(g, jnp.float32) for g in gradients], state, values)
    for value, right in zip(values, expected(0.7, 0.9), strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [0.7, "sgd", object()])
def test_anything_else_is_no_outer_optimizer(given):
    with pytest.raises(ArgumentError, match="outer_optimizer"):
        rx.DiLoCoStrategy(3, outer_optimizer=given)


def test_optimizers_of_keras_have_no_variables_in_the_strategy():
    found = run_islands(body, functools.partial(rx.DiLoCoStrategy, 4, outer_optimizer=keras_sgd()))
    plain = run_islands(body, functools.partial(rx.DiLoCoStrategy, 4))
    assert found[0][2] == plain[0][2]
    for value, right in zip(found[0][0], plain[0][0], strict=True):
        np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)


def streamed(every, fragments, islands, batches, rate=0.7, momentum=0.9):
    """Streaming DiLoCo: each fragment has rounds of its own, with an offset."""
    start = [np.full((5, 1), 1.0), np.zeros(1)]
    own = [[value.copy() for value in start] for _ in range(islands)]
    anchors, moments = [v.copy() for v in start], [np.zeros_like(v) for v in start]
    # As the strategy cuts them: with the count of rows, which is the third variable.
    fragment_of = cut_evenly([4 * value.size for value in start] + [4], fragments)
    schedule, step = Schedule(every, fragments), 0
    for position in range(0, len(batches), islands):
        for island in range(islands):
            x, y = batches[position + island]
            w, b = own[island]
            error = 2 * (x @ w + b - y) / len(x)
            own[island] = [w - RATE * x.T @ error, b - RATE * error.sum(axis=0)]
        step = step % every + 1
        for i in [i for i in range(len(start)) if fragment_of[i] in schedule.due(step)]:
            gradient = anchors[i] - np.mean([each[i] for each in own], axis=0)
            moments[i] = momentum * moments[i] + gradient
            anchors[i] = anchors[i] - rate * (gradient + momentum * moments[i])
            for each in own:
                each[i] = anchors[i].copy()
    return own


@pytest.mark.daily(2)
@pytest.mark.parametrize(("fragments", "steps"), [(1, 8), (2, 6), (2, 7), (2, 8)])
def test_fragments_have_rounds_of_their_own(fragments, steps):
    def own(strategy):
        training = Training(strategy).fit(BATCHES[: 2 * steps])
        with strategy.own_values():
            return training.values(), strategy.step_in_round

    right = streamed(4, fragments, 2, BATCHES[: 2 * steps])
    found = run_islands(own, functools.partial(rx.DiLoCoStrategy, 4, fragments=fragments))
    for (values, step), islands_own in zip(found, right, strict=True):
        assert step == steps % 4
        for value, expected in zip(values, islands_own, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)
