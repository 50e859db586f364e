"""Metrics of Keras in steps of replicas."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.program.test_keras_state import ROWS, built


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, ROWS[:2], ROWS[2:])


# Metrics.


METRICS = {
    "mean": (keras.metrics.Mean, lambda y, p: (p,)),
    "sum": (keras.metrics.Sum, lambda y, p: (p,)),
    "accuracy": (keras.metrics.BinaryAccuracy, lambda y, p: (y, p)),
    "auc": (lambda: keras.metrics.AUC(num_thresholds=11), lambda y, p: (y, p)),
    "rmse": (keras.metrics.RootMeanSquaredError, lambda y, p: (y, p)),
}
Y = np.array([0, 1, 1, 0], "float32")
P = np.array([0.1, 0.9, 0.4, 0.6], "float32")


@pytest.fixture(params=METRICS)
def metric(request, two, per_replica):
    """A metric under two replicas, a step that updates it, and what plain Keras says after each such step."""
    make, arguments = METRICS[request.param]
    with two.scope():
        made = make()
    plain = make()
    y, p = per_replica(two, Y[:2], Y[2:]), per_replica(two, P[:2], P[2:])

    def update_both():
        two.run(lambda y, p: made.update_state(*arguments(y, p)), args=(y, p))
        plain.update_state(*arguments(Y, P))

    return made, plain, update_both


@pytest.mark.daily(3)
def test_metrics_count_over_all_replicas_and_reset_anywhere(two, metric):
    made, plain, update = metric
    for reset in (made.reset_state, lambda: two.run(lambda: made.reset_state()), rx.function(made.reset_state)):
        update()
        update()
        assert float(made.result()) == pytest.approx(float(plain.result()), rel=1e-6)
        reset()
        assert all(not np.any(variable.numpy()) for variable in made.variables)
        plain.reset_state()
        update()
        assert float(made.result()) == pytest.approx(float(plain.result()), rel=1e-6)


def test_a_metric_inside_a_loss_counts_every_row_once(two, x):
    layer = built(two, lambda: keras.layers.Dense(1))
    with two.scope():
        seen = keras.metrics.Mean()

    def step(x):
        def loss_fn():
            y = layer(x)
            seen.update_state(x[:, 0])
            return jnp.sum(y**2)

        return rx.value_and_grad(loss_fn, layer.trainable_variables)()[0]

    for _ in range(2):
        two.run(step, args=(x,))
    assert float(seen.result()) == pytest.approx(ROWS[:, 0].mean(), rel=1e-5)
    assert float(seen.count.value) == 8.0


def test_a_metric_reset_and_updated_in_one_step_holds_that_step_only(two, x):
    with two.scope():
        seen = keras.metrics.Sum()

    def step(x):
        seen.reset_state()
        seen.update_state(x)

    for _ in range(3):
        two.run(step, args=(x,))
    assert float(seen.result()) == pytest.approx(ROWS.sum(), rel=1e-5)


def test_the_result_inside_a_function_is_the_total(two, x):
    with two.scope():
        seen = keras.metrics.Sum()

    @rx.function
    def step(x):
        two.run(lambda x: seen.update_state(x), args=(x,))
        return seen.result()

    assert float(step(x)) == pytest.approx(ROWS.sum(), rel=1e-5)
    assert float(step(x)) == pytest.approx(2 * ROWS.sum(), rel=1e-5)
