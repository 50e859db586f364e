"""`rx.value_and_grad` with respect to a module of flax's nnx: its gradients are those of `nnx.value_and_grad`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import replicax as rx

nnx = pytest.importorskip("flax.nnx")

X = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.used = nnx.Linear(3, 1, rngs=rngs)
        self.norm = nnx.BatchNorm(1, rngs=rngs)
        self.unused = nnx.Linear(2, 1, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.used(x))[:, 0]


def test_gradients_are_those_of_nnx_and_the_loss_may_change_the_module():
    model, other = Net(nnx.Rngs(0)), Net(nnx.Rngs(0))
    loss, grads = rx.value_and_grad(lambda: jnp.square(model(X) - 1).mean(), model)()
    expected_loss, expected = nnx.value_and_grad(lambda model: jnp.square(model(X) - 1).mean())(other)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    assert jax.tree.structure(nnx.to_pure_dict(grads)) == jax.tree.structure(nnx.to_pure_dict(expected))
    for one, wanted in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(model.norm.mean[...], other.norm.mean[...], rtol=1e-6)


def test_in_replicas_they_are_summed_and_an_optimizer_takes_them(two):
    model = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step(x):
        loss, grads = rx.value_and_grad(lambda: rx.compute_average_loss(jnp.square(model(x) - x[:, 0])), model)()
        optimizer.update(model, grads)
        return loss

    losses = []
    for batch in two.distribute_dataset([X] * 5):
        losses.append(float(two.reduce("sum", two.run(step, args=(batch,)), axis=None)))
    assert losses[-1] < losses[0]


def test_one_parameter_in_a_pytree():
    weight, bias = nnx.Param(jnp.float32(3.0)), nnx.Param(jnp.float32(1.0))
    grads = rx.grad(lambda: weight * weight, {"w": weight, "b": [bias]})()
    assert isinstance(grads["w"], nnx.Param)
    assert float(grads["w"][...]) == 6.0
    assert float(grads["b"][0][...]) == 0.0
