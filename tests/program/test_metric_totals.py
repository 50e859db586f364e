from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import VariableError

ops = keras.ops
ROWS = np.arange(12, dtype="float32").reshape(4, 3) + 1


class Total(keras.metrics.Metric):
    """A metric with one variable, and a rule for its new value: (total, rows) -> total."""

    def __init__(self, rule, initial=0.0):
        super().__init__(name="total")
        self.rule = rule
        self.total = self.add_variable(
            (), initializer=lambda shape, dtype=None: ops.full(shape, initial, dtype), name="total"
        )

    def update_state(self, x):
        self.total.assign(self.rule(ops.convert_to_tensor(self.total), x))

    def result(self):
        return ops.convert_to_tensor(self.total)


def updated(strategy, x, rule, steps=2, initial=0.0, step=None):
    """Returns a metric that has seen `x` in some steps."""
    with strategy.scope():
        metric = Total(rule, initial)
    for _ in range(steps):
        strategy.run(step or (lambda metric, x: metric.update_state(x)), args=(metric, x))
    return metric


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, ROWS[:2], ROWS[2:])


WRONG = {
    "max": lambda total, x: ops.maximum(total, ops.max(x)),
    "min": lambda total, x: ops.minimum(total, ops.min(x)),
    "product": lambda total, x: total * ops.sum(x),
    "own quotient": lambda total, x: total / ops.sum(x),
    "square": lambda total, x: total * total + ops.sum(x),
    "logarithm": lambda total, x: ops.log(ops.exp(total) + ops.sum(ops.exp(x))),
    "what is subtracted from": lambda total, x: ops.sum(x) - total,
    "twice": lambda total, x: total + ops.sum(x) + total,
    "the batch's max": lambda total, x: ops.max(x),
    "a number": lambda total, x: ops.convert_to_tensor(-1e9),
    "inside a branch": lambda total, x: jax.lax.cond(
        ops.sum(x) > 0, lambda: jnp.maximum(total, x[0, 0]), lambda: total
    ),
    "inside a jitted function": lambda total, x: jax.jit(jnp.maximum)(total, ops.max(x)),
}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
def test_a_metric_that_is_no_sum_is_refused(two, x, rule):
    with pytest.raises(VariableError, match=r"'total/total'.*Replicas may only add"):
        updated(two, x, rule)


UNKNOWN = {
    "moving average": lambda total, x: 0.9 * total + 0.1 * ops.sum(x),
    "at least a number": lambda total, x: ops.maximum(total + ops.sum(x), 0.0),
    "the batch's sum": lambda total, x: ops.sum(x),
    "until a limit": lambda total, x: ops.where(total < 100, total + ops.sum(x), total),
    "a loop": lambda total, x: jax.lax.fori_loop(0, 2, lambda i, carry: carry + x[i, 0], total),
}


@pytest.mark.parametrize("rule", UNKNOWN.values(), ids=UNKNOWN)
def test_of_what_may_be_no_sum_there_is_one_warning(two, x, rule, caplog):
    two.advice.clear()  # of other tests
    with caplog.at_level(logging.WARNING, logger="replicax"):
        updated(two, x, rule)
    assert len([record for record in caplog.records if "Replicas may only add" in record.message]) == 1


RIGHT = {
    "sum": lambda total, x: total + ops.sum(x),
    "difference": lambda total, x: total - ops.sum(x),
    "sum in another dtype": lambda total, x: ops.cast(ops.cast(total, "float64") + ops.sum(x), "float32"),
    "some rows": lambda total, x: ops.where(ops.sum(x) > 30, total + ops.sum(x), total),
    "an element of a table": lambda total, x: jnp.reshape(total, (1,)).at[0].add(ops.sum(x))[0],
    "a branch": lambda total, x: jax.lax.cond(ops.sum(x) > 30, lambda: total + x[0, 0], lambda: total),
    "two parts": lambda total, x: ops.sum(x[:, 0]) + (total + ops.max(x) * ops.min(x)),
    "reset": lambda total, x: ops.zeros(()),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("rule", RIGHT.values(), ids=RIGHT)
def test_sums_stay_exact_and_say_nothing(two, x, rule, caplog):
    with caplog.at_level(logging.WARNING, logger="replicax"):
        metric = updated(two, x, rule)
    expected = jnp.zeros(())
    for _ in range(2):
        parts = [rule(expected, jnp.asarray(ROWS[:2])), rule(jnp.zeros(()), jnp.asarray(ROWS[2:]))]
        expected = sum(parts)
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
    assert not caplog.records


def test_a_step_may_reset_a_metric_and_go_on_and_update_it_inside_a_loss(two, x, caplog):
    with two.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        layer.build((None, 3))

    def step(metric, x):
        metric.reset_state()
        metric.update_state(x)

        def loss_fn():
            y = layer(x)
            metric.update_state(y)
            return ops.sum(y)

        rx.value_and_grad(loss_fn, layer.trainable_variables)()
        metric.update_state(x)

    with caplog.at_level(logging.WARNING, logger="replicax"):
        metric = updated(two, x, lambda total, x: total + ops.sum(x), step=step)
    assert float(metric.result()) == 3 * ROWS.sum()
    assert not caplog.records


def test_of_a_total_that_is_a_mean_the_mean_stays(two, x):
    class Largest(keras.metrics.Metric):
        def __init__(self):
            super().__init__()
            self.largest = keras.Variable(0.0, trainable=False, synchronization="on_read", aggregation="mean")

        def update_state(self, x):
            self.largest.assign(ops.max(x))

        def result(self):
            return ops.convert_to_tensor(self.largest)

    with two.scope():
        metric = Largest()
    two.run(lambda metric, x: metric.update_state(x), args=(metric, x))
    assert float(metric.result()) == (ROWS[:2].max() + ROWS[2:].max()) / 2


def test_one_replica_may_do_anything_with_a_metric(mirrored, caplog):
    with caplog.at_level(logging.WARNING, logger="replicax"):
        metric = updated(mirrored(1), ROWS, WRONG["max"], initial=-1e9)
    assert float(metric.result()) == ROWS.max()
    assert not caplog.records


M = keras.metrics
rng = np.random.default_rng(0)
ONE_HOT, SHARES = np.eye(3, dtype="float32")[rng.integers(0, 3, 12)], rng.dirichlet([1, 1, 1], 12).astype("float32")
CLASSES, OTHER_CLASSES = (rng.integers(0, 3, (12, 1)).astype("int32") for _ in range(2))
LABELS, SCORES = rng.integers(0, 2, (12, 1)).astype("float32"), rng.uniform(0.01, 0.99, (12, 1)).astype("float32")
NUMBERS, OTHER_NUMBERS = (rng.normal(size=(12, 3)).astype("float32") for _ in range(2))
ARGUMENTS = {
    **dict.fromkeys(["SensitivityAtSpecificity", "SpecificityAtSensitivity"], (0.5,)),
    **dict.fromkeys(["PrecisionAtRecall", "RecallAtPrecision"], (0.5,)),
    **dict.fromkeys(["MeanIoU", "OneHotMeanIoU"], (3,)),
    **dict.fromkeys(["IoU", "OneHotIoU"], (3, [0])),
    "MeanRelativeError": (np.ones(3, "float32"),),
    "MeanMetricWrapper": (lambda y, p: abs(y - p),),
}
METRICS = {
    cls.__name__: cls
    for cls in vars(M).values()
    if isinstance(cls, type) and issubclass(cls, M.Metric) and cls is not M.Metric
}


def data_of(name):
    if name in ("MeanIoU", "IoU"):
        return CLASSES, OTHER_CLASSES
    if "Sparse" in name:
        return CLASSES, SHARES
    if "OneHot" in name or "Categorical" in name or name in ("F1Score", "FBetaScore", "KLDivergence", "Poisson"):
        return ONE_HOT, SHARES
    if name in ("R2Score", "CosineSimilarity") or "Correlation" in name or "Error" in name:
        return NUMBERS, OTHER_NUMBERS
    return LABELS, SCORES


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", METRICS)
def test_every_metric_of_keras_counts_as_on_one_device_and_says_nothing(two, per_replica, name, caplog):
    truth, predicted = data_of(name)

    def made():
        return METRICS[name](*ARGUMENTS.get(name, ()))

    with two.scope():
        metric = made()
    reference = made()

    def update(metric, batch):
        metric.update_state(*(batch[1:] if name in ("Mean", "Sum") else batch))

    with caplog.at_level(logging.WARNING, logger="replicax"):
        for rows in (slice(0, 8), slice(4, 12)):
            y, p = truth[rows], predicted[rows]
            two.run(update, args=(metric, (per_replica(two, y[:4], y[4:]), per_replica(two, p[:4], p[4:]))))
            update(reference, (y, p))
    np.testing.assert_allclose(metric.result(), reference.result(), rtol=1e-4, atol=1e-5)
    assert not caplog.records
