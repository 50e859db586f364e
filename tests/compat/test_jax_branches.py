"""Branches under `jax.vmap`: each row of a replica takes its own, and they use what all replicas have alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.lax.control_flow import conditionals
from jax.interpreters import batching

from tests.compat.guards import needs

ROWS = np.array([[1.0, 2.0], [-3.0, 1.0], [0.2, 0.1], [2.0, 2.0]], np.float32)
WEIGHTS = np.array([0.0, 1.5], np.float32)


def test_jax_still_has_the_names():
    needs("jax", "batching.fancy_primitive_batchers", lambda: batching.fancy_primitive_batchers[conditionals.cond_p])


@jax.custom_vjp
def tripled(weights, row):
    return 2 * weights + row


tripled.defvjp(lambda weights, row: (tripled(weights, row), weights), lambda kept, given: (3 * given * kept, given))


def chosen(row, first, second):
    return jax.lax.cond(jnp.sum(row) > 0, first, second, row)


def looped(row, w):
    return jax.lax.scan(lambda carry, x: (chosen(carry, lambda b: b * w, lambda b: b + w), x), row, jnp.ones((3, 2)))[0]


# What is done with a row, given the weights.
WAYS = {
    "numbers": lambda row, w: jax.lax.cond(jnp.sum(row) > 0, lambda b: b * 1.0, lambda b: b * 2, w),
    "captured": lambda row, w: chosen(row, lambda b: b * w, lambda b: jnp.zeros(2)),
    "other rows": lambda row, w: chosen(row, lambda b: b + w, lambda b: w * 2),
    "not taken": lambda row, w: chosen(row, lambda b: jnp.log(w - 1) + jnp.log(b), lambda b: jnp.sqrt(w) * b),
    "switch": lambda row, w: jax.lax.switch(jnp.int32(row[1]), [lambda b: b * w, lambda b: w, lambda b: b], row),
    "rules": lambda row, w: chosen(row, lambda b: jax.nn.relu(w), lambda b: tripled(w, w) + tripled(w, b)),
    "in a scan": looped,
    "a scan in it": lambda row, w: chosen(
        row, lambda b: b, lambda b: jax.lax.scan(lambda carry, x: (carry * w + x, carry), b, jnp.ones((3, 2)))[0]
    ),
    "recomputed": lambda row, w: chosen(row, lambda b: jax.checkpoint(lambda w: jnp.sin(w) * 2)(w), lambda b: b),
    "compiled": jax.jit(lambda row, w: chosen(row, lambda b: jnp.where(w > 1, w, b), lambda b: jax.nn.softplus(w))),
    "nested": lambda row, w: chosen(row, lambda b: chosen(b - w, lambda c: w, lambda c: c * w), lambda b: b),
}


@pytest.mark.daily(6)
@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_are_those_of_plain_jax(mirrored, way):
    def values(rows, w):
        return jax.vmap(WAYS[way], (0, None))(rows, w)

    def gradient(rows, w):
        return jax.grad(lambda w: jnp.sum(values(rows, w)))(w)

    strategy = mirrored(2)
    [rows] = strategy.distribute_dataset([ROWS])
    weights = strategy.replicate(WEIGHTS)
    found, of_weights = strategy.run(lambda rows, w: (values(rows, w), gradient(rows, w)), args=(rows, weights))
    np.testing.assert_allclose(strategy.gather(found, axis=0), values(ROWS, WEIGHTS), rtol=1e-6)
    np.testing.assert_allclose(of_weights, gradient(ROWS, WEIGHTS), rtol=1e-6)
