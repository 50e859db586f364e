"""`keras.remat` and `keras.RematScope` with layers that have state: the numbers are those without them."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest

import replicax as rx

_rng = np.random.default_rng(0)
X, Y = _rng.normal(size=(23, 4)).astype(np.float32), _rng.normal(size=(23, 1)).astype(np.float32)


class Block(keras.layers.Layer):
    """A layer that rematerializes a part of itself."""

    def __init__(self, again):
        super().__init__()
        self.norm, self.drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1)
        self.inner = keras.remat(self.part) if again else self.part

    def part(self, x, training):
        return self.drop(self.norm(x, training=training), training=training)

    def call(self, x, training=False):
        return self.inner(x, training)


def made(strategy, again, scope):
    keras.utils.set_random_seed(1)
    around = keras.RematScope(mode="full") if again and scope else contextlib.nullcontext()
    with strategy.scope(), around:
        middle = keras.layers.BatchNormalization() if scope else Block(again)
        layers = [keras.layers.Dense(8, "tanh"), middle, keras.layers.Dropout(0.2, seed=2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((4,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def fitted(strategy, again, scope):
    model = made(strategy, again, scope)
    model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return model


def looped(strategy, again, scope):
    model = made(strategy, again, scope)

    def step(x, y):
        def loss():
            return rx.compute_average_loss((model(x, training=True) - y)[:, 0] ** 2)

        gradients = rx.grad(loss, model.trainable_variables)()
        model.optimizer.apply(gradients, model.trainable_variables)

    for batch in strategy.distribute_dataset([(X[:21], Y[:21])] * 2):
        strategy.run(step, args=batch)
    return model


@pytest.mark.daily(1)
@pytest.mark.parametrize("scope", [True, False], ids=["RematScope", "remat"])
@pytest.mark.parametrize("work", [fitted, looped])
def test_the_numbers_are_the_same(mirrored, work, scope):
    three = mirrored(3)
    ours, plain = (work(three, again, scope) for again in (True, False))
    for a, b in zip(ours.variables, plain.variables, strict=True):
        np.testing.assert_allclose(a.value, b.value, rtol=1e-6, atol=1e-7, err_msg=a.path)


def test_a_loss_that_a_layer_adds_in_it_is_refused(mirrored):
    two = mirrored(2)
    with two.scope():
        layer = keras.layers.Dense(1, activity_regularizer="l2")
        layer.build((None, 4))

    def step(x):
        return rx.grad(lambda: rx.compute_average_loss(rx.remat(layer)(x)[:, 0]), layer.trainable_variables)()

    (batch,) = two.distribute_dataset([X[:8]])
    with pytest.raises(rx.errors.ProgramError, match="adds a loss"):
        two.run(step, args=(batch,))
