"""What is typed as varying and is equal nevertheless may be assigned to a mirrored variable."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

ROWS = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


@pytest.fixture
def v(two):
    with two.scope():
        return rx.Variable(2.0, name="v")


def gathered(x):
    return jnp.max(jax.lax.all_gather(x, "replica"))


def in_a_loss(v, value):
    def step(x):
        def loss_fn():
            v.assign(value(x))
            return v.value * 3.0

        return rx.grad(loss_fn, [v], aggregation="mean")()[0]

    return step


def test_what_all_gather_returns_is_equal(two, v, per_replica, either_way):
    two.run(lambda x: v.assign(gathered(x)), args=(per_replica(two, 1.0, 5.0),))
    assert float(v) == 5.0


def test_what_is_made_of_it_and_of_own_data_is_not(two, v, per_replica, either_way):
    with pytest.raises(rx.ReplicaDivergenceError, match=r"'v'.*this replica's own data"):
        two.run(lambda x: v.assign(gathered(x) + x), args=(per_replica(two, 1.0, 5.0),))
    assert float(v) == 2.0


def test_the_error_comes_from_the_assignment(two, v, per_replica):
    def this_assigns(x):
        v.assign(x)

    with pytest.raises(rx.ReplicaDivergenceError) as caught:
        two.run(lambda x: this_assigns(x), args=(per_replica(two, 1.0, 5.0),))
    assert "this_assigns" in [entry.name for entry in caught.traceback]


def test_a_loss_may_assign_what_it_makes_of_the_weights(two, v, per_replica):
    """Each replica differentiates for itself, so there every value made of a weight is typed as varying."""
    step = in_a_loss(v, lambda x: v.value * 2)
    gradient = two.run(step, args=(per_replica(two, 1.0, 5.0),))
    assert float(v) == 4.0
    assert float(gradient) == 6.0


@pytest.mark.parametrize("value", [lambda x: x, lambda x: jax.lax.cond(x > 2, lambda: 1.0, lambda: 2.0)])
def test_a_loss_may_not_assign_what_differs(two, v, per_replica, value):
    with pytest.raises(rx.ReplicaDivergenceError, match="'v'"):
        two.run(in_a_loss(v, value), args=(per_replica(two, 1.0, 5.0),))
    assert float(v) == 2.0


def test_a_gradient_that_is_gathered_may_be_applied(two, per_replica):
    with two.scope():
        weight = keras.Variable(2.0, name="weight")
        optimizer = keras.optimizers.Adam(0.5)
        optimizer.build([weight])

    def step(x):
        (gradient,) = rx.grad(lambda: weight * x, [weight], aggregation=None)()
        optimizer.apply([jnp.sum(jax.lax.all_gather(gradient, "replica"))], [weight])

    two.run(step, args=(per_replica(two, 1.0, 5.0),))
    assert float(weight) == pytest.approx(1.5, abs=1e-4)


def squares(y, predicted):
    return keras.ops.sum((predicted - y) ** 2, axis=1)


def in_scan(call):
    return lambda x: rx.lax.scan(lambda _, row: (_, call(row)), xs=x[None])[1][0]


@pytest.mark.parametrize(
    "around",
    [
        lambda call: call,
        rx.remat,
        in_scan,
        lambda call: lambda x: rx.lax.switch(0, [call], x),
        lambda c: rx.remat(rx.remat(c)),
    ],
    ids=["alone", "remat", "scan", "switch", "twice"],
)
def test_spectral_normalization_trains_as_in_plain_keras(two, around):
    """Its call assigns the kernel, which is trained, and chooses by it; Keras drops the new value after the loss."""
    targets = np.ones((8, 4), "float32")

    def made():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((3,)), keras.layers.SpectralNormalization(keras.layers.Dense(4))])

    plain = made()
    plain.compile(keras.optimizers.SGD(0.05), squares)
    for _ in range(3):
        plain.train_on_batch(ROWS, targets)
    with two.scope():
        model, optimizer = made(), keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)

    def step(x, y):
        loss_fn = lambda x, y: rx.compute_average_loss(squares(y, called(x)))  # noqa: E731
        optimizer.apply(rx.grad(loss_fn, model.trainable_variables)(x, y), model.trainable_variables)

    called = around(lambda x: model(x, training=True))
    for batch in two.distribute_dataset([(ROWS, targets)] * 3):
        two.run(step, batch)
    for found, expected in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
