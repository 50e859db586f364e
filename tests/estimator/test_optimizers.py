"""How a training updates the variables: a function, one of gradients, and losses that are sums."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.estimator import Estimator, EstimatorSpec, RunConfig
from tests.estimator.problems import X, Y, batches

W = np.linspace(-0.5, 0.5, 8, dtype=np.float32).reshape(4, 2)


def expected(reduce=np.mean) -> np.ndarray:
    """The weights after SGD on `reduce((x w - y)**2)`."""
    w = W.astype(np.float64)
    for x, y in batches():
        count = y.size if reduce is np.mean else 24
        w = w - 0.1 * 2 * x.T.astype(np.float64) @ (x @ w - y) / count
    return w


def loss_of(w, x, y):
    return jnp.mean((x @ w - y) ** 2)


def by_gradients(features, labels, mode):
    w = rx.Variable(W, name="w")

    def train_op(gradients):
        for gradient, variable in gradients:
            variable.assign_sub(0.1 * gradient)

    return EstimatorSpec(mode, loss=loss_of(w.value, features, labels), train_op=train_op)


def by_itself(features, labels, mode):
    w = rx.Variable(W, name="w")

    def train_op():
        gradient = rx.grad(lambda: loss_of(w.value, features, labels), w, aggregation="mean")()
        w.assign_sub(0.1 * gradient)

    return EstimatorSpec(mode, loss=loss_of(w.value, features, labels), train_op=train_op)


def by_keras_in_train_op(features, labels, mode):
    w = rx.Variable(lambda: jnp.asarray(W), name="w")
    optimizer = keras.optimizers.SGD(0.1)
    return EstimatorSpec(
        mode, loss=loss_of(w.value, features, labels), train_op=lambda pairs: optimizer.apply_gradients(pairs)
    )


def by_keras_with_scaled_loss(features, labels, mode):
    w = rx.Variable(W, name="w")
    return EstimatorSpec(
        mode,
        loss=loss_of(w.value, features, labels),
        optimizer=keras.optimizers.SGD(0.1, loss_scale_factor=64.0),
    )


def summed(features, labels, mode):
    w = rx.Variable(W, name="w")
    loss = jnp.sum((features @ w.value - labels) ** 2) / 24
    return EstimatorSpec(mode, loss=loss, optimizer=keras.optimizers.SGD(0.1), loss_reduction="sum")


@pytest.mark.daily(2)
@pytest.mark.parametrize("model_fn", [by_gradients, by_itself, by_keras_in_train_op, by_keras_with_scaled_loss, summed])
def test_every_way_to_update_gives_the_weights_of_one_device(tmp_path, model_fn):
    config = RunConfig(
        train_distribute=rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]),
        log_step_count_steps=None,
        save_summary_steps=None,
    )
    estimator = Estimator(model_fn, tmp_path, config).train(batches)
    wanted = expected(np.sum if model_fn is summed else np.mean)
    np.testing.assert_allclose(estimator.get_variable_value("w"), wanted, rtol=1e-5, atol=1e-6)
    if model_fn is summed:
        each = [float(np.sum((x @ wanted - y) ** 2)) / 24 for x, y in batches()]
        assert estimator.evaluate(batches)["loss"] == pytest.approx(np.mean(each), rel=1e-5)


def test_dropout_and_batch_norm_go_on_after_a_restart_as_without_one(tmp_path):
    """Their state is in the checkpoint: random numbers and averages are those of a training in one go."""

    def model_fn(features, labels, mode):
        hidden = keras.layers.Dense(6)(features)
        hidden = keras.layers.BatchNormalization()(hidden, training=mode == "train")
        hidden = keras.layers.Dropout(0.3)(hidden, training=mode == "train")
        loss = keras.ops.mean((keras.layers.Dense(2)(hidden) - labels) ** 2)
        return EstimatorSpec(mode, loss=loss, optimizer=keras.optimizers.Adam(0.05))

    def run(folder, *steps):
        config = RunConfig(folder, seed=3, log_step_count_steps=None, save_summary_steps=None)
        for count in steps:
            estimator = Estimator(model_fn, config=config).train(lambda: (X[:16], Y[:16]), steps=count)
        return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}

    at_once, in_parts = run(str(tmp_path / "a"), 4), run(str(tmp_path / "b"), 1, 3)
    assert "seed_generator/seed_generator_state" in at_once
    assert "batch_normalization/moving_mean" in at_once
    for name, value in at_once.items():
        np.testing.assert_allclose(in_parts[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
