"""Gradients do not depend on how many replicas run: one by itself, one of several (a small batch), or all."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

W = np.arange(6.0, dtype=np.float32).reshape(3, 2)
X = np.random.default_rng(0).normal(size=(17, 3)).astype(np.float32)  # batches of 16 rows and of 1


@jax.custom_vjp
def product(w, x):
    return x @ w


product.defvjp(lambda w, x: (x @ w, (w, x)), lambda saved, g: (saved[1].T @ g, g @ saved[0].T))

HOSTS = {
    "one device": lambda: rx.OneDeviceStrategy("cpu:0"),
    "one replica": lambda: rx.MirroredStrategy(1),
    "two": lambda: rx.MirroredStrategy(2),
    "eight": lambda: rx.MirroredStrategy(8),
    "sharded": lambda: rx.FullyShardedStrategy(2, min_size=1),
}


@pytest.fixture(params=HOSTS)
def host(request):
    return HOSTS[request.param]()


def gradients_of_each_batch(strategy, loss_of, w):
    def step(batch):
        return rx.value_and_grad(lambda: loss_of(w, batch[0]), [w])()[1][0]

    return [np.asarray(strategy.run(step, args=(b,))) for b in strategy.distribute_dataset((X,), batch_size=16)]


@pytest.mark.daily(2)
def test_a_custom_rule_over_a_weight_and_the_rows_gives_the_gradient(host):
    with host.scope():
        w = rx.Variable(W)
    ours = gradients_of_each_batch(host, lambda w, x: rx.compute_average_loss(jnp.sum(product(w.value, x) ** 2, -1)), w)
    for rows, gradient in zip((X[:16], X[16:]), ours, strict=True):
        expected = jax.grad(lambda w, rows=rows: jnp.mean(jnp.sum((rows @ w) ** 2, -1)))(W)
        np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.daily(3)
@pytest.mark.parametrize("change", [lambda w: w.assign_add(jnp.ones((3, 2))), lambda w: w.assign(w.value + 1)])
def test_a_loss_may_change_a_variable_that_it_is_differentiated_by(host, change):
    with host.scope():
        w = rx.Variable(W)

    def loss(w, x):
        change(w)
        return rx.compute_average_loss(jnp.sum(x @ w.value, -1))

    gradients_of_each_batch(host, loss, w)
    np.testing.assert_allclose(np.asarray(w.value), W + 2)
