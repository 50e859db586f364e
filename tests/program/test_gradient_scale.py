"""Losses that are means over a replica's own rows, while gradients are summed: told once, and never wrongly."""

import logging

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax as rx

KERAS_MEAN = keras.losses.MeanSquaredError()
KERAS_EACH = keras.losses.MeanSquaredError(reduction="none")


@pytest.fixture
def new():
    """Makes a strategy that has told nobody anything."""
    return lambda count: rx.MirroredStrategy([f"cpu:{i}" for i in range(count)])


def gradients_of(strategy, loss_of, rows=16, columns=3, runs=True, distributes=True, **options):
    """Differentiates a loss of predictions and targets of shape `(rows, columns)`; returns dL/dw."""
    with strategy.scope():
        w = rx.Variable(jnp.ones((2, columns)))

    def step(batch):
        x, y = batch

        def loss_fn():
            return loss_of(jnp.tanh(x @ w.value), y)

        return rx.grad(loss_fn, [w], **options)()

    rng = np.random.default_rng(0)
    data = rng.normal(size=(rows, 2)).astype("float32"), rng.normal(size=(rows, columns)).astype("float32")
    (batch,) = strategy.distribute_dataset([data]) if distributes else [data]
    if runs:
        return np.asarray(strategy.run(step, args=(batch,))[0])
    return rx.function(lambda batch: strategy.run(step, args=(batch,))).lower(batch)  # traced, not compiled


def plain_gradients_of(strategy, loss_of, rows=16, columns=3, after=lambda gradient: gradient, own=False):
    """The same with plain JAX: of an argument; `own`: each replica for itself."""

    def step(w, batch):
        x, y = batch
        w = jax.lax.pcast(w, "replica", to="varying") if own else w
        loss, gradient = jax.value_and_grad(lambda w: loss_of(jnp.tanh(x @ w), y))(w)
        return after(gradient), jnp.mean(loss)

    rng = np.random.default_rng(0)
    data = rng.normal(size=(rows, 2)).astype("float32"), rng.normal(size=(rows, columns)).astype("float32")
    (batch,) = strategy.distribute_dataset([data])
    return np.asarray(strategy.run(step, args=(jnp.ones((2, columns)), batch))[0])


def squares(p, y):
    return jnp.square(p - y)


def masked(p, y):
    mask = (y[:, 0] > -0.5).astype(p.dtype)
    return jnp.sum(squares(p, y)[:, 0] * mask) / jnp.maximum(jnp.sum(mask), 1.0)


WRONG = {
    "mean": lambda p, y: jnp.mean(squares(p, y)),
    "mean of sums": lambda p, y: jnp.mean(jnp.sum(squares(p, y), axis=-1)),
    "sum of means": lambda p, y: jnp.sum(jnp.mean(squares(p, y), axis=0)),
    "keras": lambda p, y: KERAS_MEAN(y, p),
    "keras cross-entropy": lambda p, y: keras.losses.CategoricalCrossentropy(from_logits=True)(jax.nn.softmax(y), p),
    "keras ops": lambda p, y: keras.ops.mean(keras.ops.square(p - y)),
    "jitted": lambda p, y: jax.jit(lambda p, y: jnp.mean(squares(p, y)))(p, y),
    "remat": lambda p, y: jax.checkpoint(lambda p: jnp.mean(squares(p, y)))(p),
    "with a penalty": lambda p, y: jnp.mean(squares(p, y)) + rx.scale_regularization_loss(jnp.float32(2.0)),
    "in two dtypes": lambda p, y: jnp.mean(squares(p, y).astype("float16")).astype("float32"),
    "vmapped": lambda p, y: jnp.mean(jax.vmap(lambda p, y: jnp.sum(squares(p, y)))(p, y)),
    "masked": masked,
}


def right(rows, replicas):
    """Losses that add up to that of the global batch."""
    size = rows

    def after_all_reduce(p, y):
        return rx.get_replica_context().all_reduce("mean", jnp.mean(squares(p, y)))

    def masked_globally(p, y):
        mask = (y[:, 0] > -0.5).astype(p.dtype)
        return jnp.sum(squares(p, y)[:, 0] * mask) / rx.get_replica_context().all_reduce("sum", jnp.sum(mask))

    return {
        "average": lambda p, y: rx.compute_average_loss(KERAS_EACH(y, p), global_batch_size=size),
        "average by default": lambda p, y: rx.compute_average_loss(jnp.sum(squares(p, y), -1)),
        "average of all": lambda p, y: rx.compute_average_loss(squares(p, y), global_batch_size=size),
        "weighted": lambda p, y: rx.compute_average_loss(squares(p, y), jnp.full(p.shape[0], 0.5), size),
        "sum over the size": lambda p, y: jnp.sum(squares(p, y)) / size,
        "sum over all": lambda p, y: jnp.sum(squares(p, y)) / (size * p.shape[1]),
        "sum": lambda p, y: jnp.sum(squares(p, y)),
        "mean over replicas": lambda p, y: jnp.mean(squares(p, y)) / replicas,
        "mean times": lambda p, y: KERAS_MEAN(y, p) * (1 / replicas),
        "mean of columns": lambda p, y: jnp.mean(jnp.sum(squares(p, y), axis=0) / size),
        "mean of each row": lambda p, y: jnp.sum(jnp.mean(squares(p, y), axis=-1)) / size,
        "reduced": after_all_reduce,
        "masked": masked_globally,
        "not of rows": lambda p, y: jnp.mean(jnp.square(jnp.ones(p.shape[0]) * jnp.sum(p))) / size,
        "largest": lambda p, y: jnp.mean(jnp.max(squares(p, y), axis=0)) / size,
    }


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", WRONG)
def test_a_mean_over_the_replicas_rows_is_told_with_the_factor_and_the_cure(new, caplog, name):
    two = new(2)
    alone = gradients_of(rx.OneDeviceStrategy("cpu:0"), WRONG[name])
    assert not caplog.records
    summed = gradients_of(two, WRONG[name])
    gradients_of(two, WRONG[name], rows=32, runs=False)
    if name != "masked":
        np.testing.assert_allclose(summed, 2 * alone, rtol=2e-2, atol=1e-4)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    for text in ("gradients_of.<locals>.step", "2 times too large", "compute_average_loss", 'aggregation="mean"'):
        assert text in record.getMessage()


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", [name for name in WRONG if name != "masked"])
def test_a_mean_over_rows_that_all_replicas_have_is_told(new, caplog, name):
    alone = gradients_of(rx.OneDeviceStrategy("cpu:0"), WRONG[name], distributes=False)
    assert not caplog.records
    summed = gradients_of(new(2), WRONG[name], distributes=False)
    np.testing.assert_allclose(summed, 2 * alone, rtol=2e-2, atol=1e-4)
    (record,) = caplog.records
    for text in ("gradients_of.<locals>.step", "2 times too large", "distribute_dataset"):
        assert text in record.getMessage()


def test_right_losses_of_rows_that_all_replicas_have_are_not_complained_about(new, caplog):
    for name, loss in right(2 * 16, 2).items():
        if name != "masked":  # It sums what is equal already, and is refused.
            gradients_of(new(2), loss, distributes=False, runs=False)
    assert not caplog.records


def mean_over_replicas(gradient):
    return rx.get_replica_context().all_reduce("mean", gradient)


def test_a_mean_over_replicas_changes_nothing(new):
    alone = plain_gradients_of(rx.OneDeviceStrategy("cpu:0"), WRONG["mean"])
    gradient = plain_gradients_of(new(2), WRONG["mean"], after=lambda g: jax.lax.pmean(g, "replica"))
    np.testing.assert_allclose(gradient, 2 * alone, rtol=1e-5)


@pytest.mark.parametrize("after", [lambda g: jax.lax.pmean(g, "replica"), mean_over_replicas], ids=["pmean", "context"])
def test_means_of_each_replicas_own_gradients_are_right(new, after):
    alone = plain_gradients_of(rx.OneDeviceStrategy("cpu:0"), WRONG["mean"])
    np.testing.assert_allclose(plain_gradients_of(new(2), WRONG["mean"], after=after, own=True), alone, rtol=1e-5)


@pytest.mark.parametrize("aggregation", ["mean", None])
def test_a_mean_is_right_where_gradients_are_averaged_or_left_alone(new, caplog, aggregation):
    for loss in WRONG.values():
        gradients_of(new(2), loss, runs=False, aggregation=aggregation)
    assert not caplog.records


@settings(max_examples=20)
@given(
    replicas=st.integers(2, 8),
    rows=st.integers(1, 4),
    columns=st.integers(1, 8),
    name=st.sampled_from(list(right(1, 1))),
)
def test_right_losses_are_not_complained_about(replicas, rows, columns, name):
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("replicax").addHandler(handler)
    try:
        strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
        gradients_of(strategy, right(rows * replicas, replicas)[name], rows * replicas, columns, runs=False)
    finally:
        logging.getLogger("replicax").removeHandler(handler)
    assert not [record.getMessage() for record in records]


def test_gradients_that_are_divided_afterwards_are_right(new, caplog):
    two = new(2)
    with two.scope():
        w = rx.Variable(jnp.ones(()))
    (batch,) = two.distribute_dataset([np.arange(8, dtype="float32")])

    def step(x):
        (gradient,) = rx.grad(lambda: jnp.mean(w * x), [w])()
        return gradient / rx.get_replica_context().num_replicas_in_sync

    assert float(two.run(step, args=(batch,))) == 3.5
    assert not caplog.records


def test_a_keras_model_in_a_function(new, caplog):
    two = new(2)
    with two.scope():
        model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(2, 3), keras.layers.Flatten()])
        model.add(keras.layers.Reshape((4, 2)))
        model.add(keras.layers.LSTM(3))
        model.add(keras.layers.Dense(2))
    (batch,) = two.distribute_dataset([np.ones((8, 4, 4, 1), "float32")])

    @rx.function
    def train(batch):
        def step(x):
            return rx.value_and_grad(lambda: KERAS_MEAN(jnp.zeros((4, 2)), model(x)), model.trainable_variables)()[0]

        return two.run(step, args=(batch,))

    train(batch)
    (record,) = caplog.records
    assert "divided by 4" in record.getMessage()
