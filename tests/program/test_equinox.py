"""Modules of Equinox in steps: pytrees with functions in them, which come back as they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

eqx = pytest.importorskip("equinox")

X = np.random.default_rng(0).normal(size=(14, 3)).astype(np.float32)
Y = X.sum(axis=1)
BATCHES = [(X[:8], Y[:8]), (X[8:], Y[8:])]
TX = optax.adam(1e-2)


def step(model, state, batch):
    x, y = batch

    @eqx.filter_value_and_grad
    def loss_fn(model):
        return rx.compute_average_loss(jnp.square(jax.vmap(model)(x)[:, 0] - y))

    loss, grads = loss_fn(model)
    updates, state = TX.update(grads, state, model)
    return eqx.apply_updates(model, updates), state, loss


def trained(strategy, call):
    model = eqx.nn.MLP(3, 1, 8, depth=2, activation=jax.nn.tanh, key=jax.random.key(0))
    state, losses = TX.init(eqx.filter(model, eqx.is_array)), []
    for batch in [*strategy.distribute_dataset(BATCHES)] * 2:
        model, state, loss = strategy.run(call, args=(model, state, batch))
        losses.append(float(strategy.reduce("sum", loss, axis=None)))
    assert callable(model.activation)
    return losses, jax.tree.leaves(eqx.filter(model, eqx.is_array))


@pytest.fixture(scope="module")
def on_one_device():
    return trained(rx.OneDeviceStrategy("cpu:0"), step)


@pytest.mark.parametrize("jitted", [False, True])
@pytest.mark.parametrize("replicas", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (3, 8))])
def test_training_is_that_of_one_device(mirrored, on_one_device, replicas, jitted):
    losses, weights = trained(mirrored(replicas), eqx.filter_jit(step) if jitted else step)
    np.testing.assert_allclose(losses, on_one_device[0], rtol=1e-5)
    for one, other in zip(weights, on_one_device[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_one_program_for_all_modules_of_a_structure():
    predict = rx.function(lambda model, x: jax.vmap(model)(x))
    for seed in range(3):
        model = eqx.nn.MLP(3, 1, 8, depth=1, key=jax.random.key(seed))
        np.testing.assert_allclose(predict(model, X), jax.vmap(model)(X), rtol=1e-5, atol=1e-6)
    assert predict.num_programs == 1
    predict(eqx.nn.MLP(3, 1, 8, depth=1, activation=jnp.sin, key=jax.random.key(0)), X)
    assert predict.num_programs == 2
