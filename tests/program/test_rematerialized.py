"""Activation checkpointing changes no numbers, and keeps fewer of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx


def stepped(strategy, wrap):
    """Makes two steps of a model with dropout, batch statistics and a metric; returns all that has changed."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        inner, outer = keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)
        inner.build((None, 4))
        outer.build((None, 8))
        norm, drop, total = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5, seed=1), keras.metrics.Sum()
        norm.build((None, 8))
        drop.build((None, 8))
        calls = rx.Variable(0)
        variables = [*inner.trainable_variables, *norm.trainable_variables, *outer.trainable_variables]
        optimizer = keras.optimizers.SGD(0.1)

    @wrap
    def block(x, factor):
        calls.assign_add(1)
        h = drop(norm(inner(x), training=True), training=True)
        total.update_state(h)
        return h * factor

    def step(x):
        def loss():
            return rx.compute_average_loss(jnp.sum(outer(block(x, 2)) ** 2, -1))

        value, gradients = rx.value_and_grad(loss, variables)()
        optimizer.apply(gradients, variables)
        return value

    rows = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
    losses = [strategy.reduce("sum", strategy.run(step, args=(b,))) for b in strategy.distribute_dataset([rows, rows])]
    state = [*variables, norm.moving_mean, norm.moving_variance, *drop.variables, *total.variables, calls]
    return [np.asarray(each) for each in losses] + [np.asarray(variable.value) for variable in state]


def check_numbers_are_the_same(strategy):
    ours, plain = (stepped(strategy, wrap) for wrap in (rx.remat, lambda fn: fn))
    for a, b in zip(ours, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("replicas", [1, 3])
def test_the_numbers_are_the_same_with_state_in_it(mirrored, replicas):
    check_numbers_are_the_same(mirrored(replicas))


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [1, 3])
def test_the_numbers_are_the_same_operation_by_operation(mirrored, replicas, eagerly):
    check_numbers_are_the_same(mirrored(replicas))


@pytest.mark.nightly
@pytest.mark.parametrize("host", [lambda: rx.MirroredStrategy(), lambda: rx.FullyShardedStrategy(min_size=8)])
def test_the_numbers_are_the_same_on_all_devices(host):
    check_numbers_are_the_same(host())


def temporary_bytes(mirrored, wrap):
    """Returns the memory for intermediate results of a step with a loop over layers.

    (Where the layers are written out, XLA computes again for CPUs too, but as early as it can, and saves little.)
    """
    two = mirrored(2)
    with two.scope():
        weights, calls = rx.Variable(np.stack([np.eye(32, dtype=np.float32)] * 8)), rx.Variable(0)

    @wrap
    def layer(h, weight):
        calls.assign_add(1)
        for _ in range(4):
            h = jnp.sin(jnp.tanh(h @ weight))
        return h

    @rx.function
    def step(x):
        def replica(x):
            def loss():
                h, _ = rx.lax.scan(lambda h, weight: (layer(h, weight), None), x, weights.value)
                return rx.compute_average_loss(jnp.sum(h, -1))

            return rx.grad(loss, weights)()

        return two.run(replica, args=(x,))

    (batch,) = two.distribute_dataset([np.ones((1024, 32), np.float32)])
    return step.lower(batch).compile().memory_analysis().temp_size_in_bytes


def test_less_is_kept(mirrored):
    assert temporary_bytes(mirrored, rx.remat) < 0.4 * temporary_bytes(mirrored, lambda fn: fn)


def test_a_policy_says_what_is_kept():
    w = rx.Variable(np.eye(4, dtype=np.float32))

    @rx.remat(policy=jax.checkpoint_policies.everything_saveable)
    def block(x):
        return jnp.sin(x @ w.value)

    text = str(jax.make_jaxpr(lambda x: jax.grad(lambda x: block(x).sum())(x))(jnp.ones((2, 4))))
    assert text.count("dot_general") == 2  # forward, and backward with respect to x


def test_outside_of_programs_it_reads_and_assigns_too():
    w, calls = rx.Variable(2.0), rx.Variable(0)

    @rx.remat
    def block(x, *, shift):
        calls.assign_add(1)
        return {"y": w * x + shift, "shift": shift}

    assert float(block(jnp.float32(3.0), shift=1)["y"]) == 7.0
    assert block(jnp.float32(3.0), shift=1)["shift"] == 1
    assert calls.numpy() == 2


def test_what_is_no_function_is_refused():
    with pytest.raises(rx.errors.ArgumentError, match="function"):
        rx.remat(3)
