"""Loops and branches that mix constants and a replica's own values."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

ROWS = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def delayed(x):
    """The last value takes three rounds to come to the first place."""
    return jax.lax.scan(lambda c, row: ((c[1], c[2], c[2] + row), c[0]), (0.0, 0.0, jnp.zeros(())), x[:, 0])


def nested(x):
    return jax.lax.scan(lambda c, row: (c + jax.lax.fori_loop(0, 2, lambda i, d: d + row[i], 0.0), None), 0.0, x)[0]


def branch_in_loop(x):
    return jax.lax.scan(lambda c, row: (jax.lax.cond(row[0] > 0, lambda: c, lambda: row.sum()), None), 0.0, x)[0]


def random_keys(x):
    start = jax.random.key(0)
    return jax.random.key_data(jax.lax.scan(lambda k, row: (jax.random.fold_in(k, row[0] > 0), None), start, x)[0])


def total(x):
    return jax.lax.scan(lambda c, row: (c + row, None), jnp.zeros(3), x)[0]


def limited(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x[0]), (0, jnp.zeros(3)))


PROGRAMS = {
    "scan": total,
    "scan with a delay": delayed,
    "scan that starts anew": lambda x: jax.lax.scan(lambda c, row: (0.0, c), x[0, 0], x),
    "scan of keys": random_keys,
    "fori_loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c + x[i, 0], 0.0),
    "fori_loop that counts": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: c + (x[i, 0] > 0), 0),
    "fori_loop with its own number of rounds": lambda x: jax.lax.fori_loop(
        0, jnp.int32(x[0, 0] > 0) + 1, lambda i, c: c + x[i], jnp.zeros(3)
    ),
    "while_loop": limited,
    "cond": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x[0], lambda: jnp.zeros(3)),
    "cond by keywords": lambda x: jax.lax.cond(x[0, 0] > 0, true_fun=lambda: x[0, 0], false_fun=lambda: 0.0),
    "cond in the old order": lambda x: jax.lax.cond(x[0, 0] > 0, x[0], lambda a: a, 2.0, lambda a: jnp.zeros(3)),
    "cond with an operand": lambda x: jax.lax.cond(x[0, 0] > 0, lambda a: a[0], lambda a: jnp.zeros(3), operand=x),
    "switch": lambda x: jax.lax.switch(jnp.int32(x[0, 0] > 0), [lambda: x[0], lambda: jnp.zeros(3), lambda: x[1]]),
    "loop in a loop": nested,
    "branch in a loop": branch_in_loop,
    "in jit": lambda x: jax.jit(total)(x),
    "in vmap": lambda x: jax.vmap(lambda x: jax.lax.scan(lambda c, row: (c + row, None), 0.0, x)[0])(x),
    "in checkpoint": lambda x: jax.checkpoint(total)(x),
    "in a gradient": lambda x: jax.grad(lambda x: total(jnp.sin(x)).sum())(x),
    "keras scan": lambda x: keras.ops.scan(lambda c, row: (c + row, c), jnp.zeros(3), x),
    "keras fori_loop": lambda x: keras.ops.fori_loop(0, 2, lambda i, c: c + x[i], jnp.zeros(3)),
    "keras while_loop": lambda x: keras.ops.while_loop(lambda c: c < 9.0, lambda c: (c + 1.0 + x[0, 0] ** 2,), (0.0,)),
    "keras cond": lambda x: keras.ops.cond(x[0, 0] > 0, lambda: x[0], lambda: jnp.zeros(3)),
}


@pytest.mark.daily(8)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_constant_beside_a_replicas_own_value_computes_as_on_one_device(two, per_replica, name):
    found = two.run(PROGRAMS[name], args=(per_replica(two, ROWS[:2], ROWS[2:]),))
    expected = [jax.tree.leaves(PROGRAMS[name](jnp.asarray(rows))) for rows in (ROWS[:2], ROWS[2:])]
    for i, leaf in enumerate(jax.tree.leaves(found, is_leaf=lambda leaf: isinstance(leaf, rx.PerReplica))):
        for component, rows in zip(two.local_results(leaf), expected, strict=True):
            np.testing.assert_allclose(component, rows[i], rtol=1e-5, atol=1e-6)
            assert component.dtype == rows[i].dtype


def test_the_gradient_for_an_equal_value_is_the_sum_over_the_replicas(two, per_replica):
    def gradient(x):
        return jax.grad(lambda w: jax.lax.scan(lambda c, row: (c + (w * row).sum(), None), w, x)[0])(jnp.float32(2.0))

    found = two.run(gradient, args=(per_replica(two, ROWS[:2], ROWS[2:]),))
    np.testing.assert_allclose(found, ROWS.sum() + 2, rtol=1e-5)


def test_only_what_has_to_be_retyped_is(two, per_replica):
    """The counter stays equal: a mirrored variable takes it, and a collective may stand in the loop."""
    with two.scope():
        counter = rx.Variable(0, name="counter")

    def step(x):
        def body(carry):
            return carry[0] + 1, carry[1] + x + jax.lax.psum(x, "replica")

        rounds, total = jax.lax.while_loop(lambda carry: carry[0] < 3, body, (0, 0.0))
        counter.assign(rounds)
        return total

    found = two.local_results(two.run(step, args=(per_replica(two, 1.0, 2.0),)))
    assert [float(value) for value in found] == [12.0, 15.0]
    assert int(counter) == 3


def test_what_a_replica_chooses_itself_still_differs(two, per_replica):
    with two.scope():
        chosen = rx.Variable(0.0, name="chosen")

    def step(x):
        chosen.assign(jax.lax.cond(x > 1, lambda: x, lambda: 20.0))

    with pytest.raises(rx.ReplicaDivergenceError, match="chosen"):
        two.run(step, args=(per_replica(two, 1.0, 2.0),))


WRONG = {
    "structure": lambda x: jax.lax.scan(lambda c, row: ((c, row), None), jnp.zeros(3), x),
    "shape in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: x, jnp.zeros(3)),
    "shape in a branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda: x[0], lambda: jnp.zeros(4)),
    "dtype": lambda x: jax.lax.switch(0, [lambda: x[0], lambda: jnp.zeros(3, int)]),
    "number of arguments": lambda x: jax.lax.cond(x[0, 0] > 0, lambda a: a, lambda a: a),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_one_device_is_as_wrong_in_a_replica(two, per_replica, name):
    with pytest.raises(TypeError) as alone:
        WRONG[name](jnp.asarray(ROWS))
    with pytest.raises(TypeError) as caught:
        two.run(WRONG[name], args=(per_replica(two, ROWS[:2], ROWS[2:]),))
    assert str(caught.value)[:30] == str(alone.value)[:30]


# Operation by operation.

MEETINGS = {
    "cond": lambda x: jax.lax.cond(x > 1, lambda: jax.lax.psum(x, "replica"), lambda: x * 0),
    "switch": lambda x: jax.lax.switch(jnp.int32(x > 1), [lambda: x * 0, lambda: jax.lax.pmax(x, "replica")]),
    "fori_loop": lambda x: jax.lax.fori_loop(0, jnp.int32(x), lambda i, c: c + jax.lax.psum(x, "replica"), 0.0),
    "while_loop": lambda x: jax.lax.while_loop(lambda c: c < x, lambda c: c + jax.lax.psum(x, "replica"), 0.0),
    "in scan": lambda x: jax.lax.scan(lambda c, _: (MEETINGS["cond"](x), None), x, None, length=1)[0],
    "in jit": lambda x: jax.jit(MEETINGS["cond"])(x),
    # How many steps it takes depends on the right-hand side of each replica.
    "in cg": lambda x: jax.scipy.sparse.linalg.cg(
        lambda v: 2 * v + 0 * jax.lax.psum(v, "replica"), jnp.stack([x, 2 * x])
    )[0],
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", MEETINGS)
def test_a_collective_that_not_all_reach_is_refused_either_way(two, per_replica, either_way, name):
    """XLA would wait forever."""
    with pytest.raises(rx.errors.ProgramError, match="where not all replicas may meet"):
        two.run(MEETINGS[name], args=(per_replica(two, 1.0, 2.0),))


def test_one_that_all_reach_is_not(two, per_replica, either_way):
    def step(x):
        largest = jnp.max(jax.lax.all_gather(x, "replica"))
        return jax.lax.cond(largest > 1, lambda: jax.lax.psum(x, "replica"), lambda: 0.0)

    found = two.local_results(two.run(step, args=(per_replica(two, 1.0, 2.0),)))
    assert [float(value) for value in found] == [3.0, 3.0]


def test_a_solver_whose_products_are_of_all_rows_ends_alike_everywhere(two, either_way):
    """A step of Newton's method: conjugate gradients over products with the Hessian."""
    x, y = np.random.default_rng(0).normal(size=(2, 6, 3)).astype("float32")

    def newton(w, x, y):
        gradient = jax.grad(lambda w: jnp.sum((x @ w - y[:, 0]) ** 2) / 6)
        return jax.scipy.sparse.linalg.cg(lambda v: jax.jvp(gradient, (w,), (v,))[1], gradient(w), maxiter=9)[0]

    [batch] = two.distribute_dataset((x, y), batch_size=6)
    w = jnp.ones(3)
    found = two.run(lambda w, batch: newton(w, *batch), args=(two.replicate(w), batch))
    np.testing.assert_allclose(two.local_results(found)[0], jax.jit(newton)(w, x, y), rtol=1e-4)
