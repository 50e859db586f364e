"""Any program of draws gives the numbers of one device, whatever shapes look alike and whatever they are drawn in."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax as rx

#: The first dimension of a draw: the rows, the rows folded with something, or a number that may look like the rows.
SIZES = st.one_of(st.just("rows"), st.just("folded"), st.integers(1, 8))
AROUND = st.sampled_from(["plain", "jit", "remat", "scan", "cond", "vmap", "rows"])
STEPS = st.lists(st.tuples(SIZES, AROUND, st.booleans()), min_size=1, max_size=4)


def drawn(key, x, size, second):
    """Returns numbers that are drawn in a shape, as something that can be added to the rows."""
    rows, columns = x.shape
    first = {"rows": rows, "folded": rows * 2}.get(size, size)
    numbers = jax.random.normal(key, (columns, first)).T if second else jax.random.uniform(key, (first, columns))
    if size == "rows":
        return numbers
    return numbers.reshape(rows, 2, columns).sum(axis=1) if size == "folded" and not second else numbers[0] * 2


def step_of(around, size, second):
    def add(key, x):
        return x + drawn(key, x, size, second and size != "folded")

    def each_row(key, x):
        return jax.vmap(lambda k, row: row + jax.random.normal(k, row.shape))(jax.random.split(key, len(x)), x)

    return {
        "plain": add,
        "jit": jax.jit(add),
        "remat": jax.checkpoint(add),
        "scan": lambda key, x: jax.lax.scan(lambda x, k: (add(k, x), None), x, jax.random.split(key, 2))[0],
        "cond": lambda key, x: jax.lax.cond(jax.random.bernoulli(key), add, lambda key, x: x, key, x),
        "vmap": lambda key, x: jax.vmap(lambda column: column + jax.random.normal(key, column.shape), 1, 1)(x),
        "rows": each_row,
    }[around]


def program(steps, key, x):
    for size, around, second in steps:
        key, own = jax.random.split(key)
        x = step_of(around, size, second)(own, x)
    return x


@functools.cache
def strategy(replicas):
    return rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)], random_numbers="per_row")


def check(steps, replicas, rows, seed):
    key, x = jax.random.key(seed), np.zeros((rows * replicas, 3), np.float32)
    run = functools.partial(program, steps)
    [batch] = strategy(replicas).distribute_dataset([x])
    found = strategy(replicas).run(run, args=(key, batch))
    found = strategy(replicas).gather(found, axis=0) if isinstance(found, rx.PerReplica) else found
    np.testing.assert_allclose(found, jax.jit(run)(key, jnp.asarray(x)), rtol=1e-6, atol=1e-6)


@pytest.mark.nightly
@settings(max_examples=6, deadline=None)
@given(STEPS, st.sampled_from([2, 4, 8]), st.integers(1, 8), st.integers(0, 9))
def test_programs_of_draws(steps, replicas, rows, seed):
    check(steps, replicas, rows, seed)


@pytest.mark.nightly
@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([2, 4, 8]), st.integers(1, 8), st.integers(0, 9))
def test_many_programs_of_draws(steps, replicas, rows, seed):
    check(steps, replicas, rows, seed)
