from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReduceError, ReplicaDivergenceError


@pytest.fixture
def x(two, per_replica):
    return per_replica(two, 1.0, 2.0)


def branch(x):
    """10 on the second replica, 20 on the first; JAX types it as equal."""
    return jax.lax.cond(x > 1, lambda: 10.0, lambda: 20.0)


def trips(x):
    return jax.lax.fori_loop(0, 10 * x.astype(int), lambda i, total: total + 1.0, 0.0)


VALUES = {"cond": branch, "switch": lambda x: jax.lax.switch(x.astype(int), [lambda: 10.0, lambda: 20.0, lambda: 10.0])}
VALUES |= {"fori_loop": trips, "jit": jax.jit(branch), "remat": jax.checkpoint(branch)}
VALUES["while_loop"] = lambda x: jax.lax.while_loop(lambda c: c < 10 * x, lambda c: c + 10, 0.0)
VALUES["scan"] = lambda x: jax.lax.scan(lambda c, _: (c + branch(x), c), 0.0, None, 2)[0]


@pytest.mark.daily(5)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_what_depends_on_a_predicate_of_the_replica_varies(two, x, value, either_way):
    with two.scope():
        plain, mean = rx.Variable(0.0, name="plain"), rx.Variable(0.0, aggregation="mean")
        total = rx.Variable(0.0, aggregation="sum")
    own = [float(value(jnp.float32(v))) for v in (1.0, 2.0)]
    result = two.run(value, args=(x,))
    assert [float(component) for component in result.values] == own
    with pytest.raises(ReplicaDivergenceError, match="plain"):
        two.run(lambda x: plain.assign(value(x)), args=(x,))
    two.run(lambda x: (mean.assign(value(x)), total.assign(value(x)))[:0], args=(x,))
    assert float(mean.value) == sum(own) / 2
    assert float(total.value) == sum(own)
    reduced = two.run(lambda x: rx.get_replica_context().all_reduce("sum", value(x)), args=(x,))
    assert float(reduced) == sum(own)


def test_the_error_says_why_and_where(two, x):
    with two.scope():
        v = rx.Variable(0.0, name="counter")
    with pytest.raises(ReplicaDivergenceError, match=r"'counter'.*`cond`.*test_replica_program\.py"):
        two.run(lambda x: v.assign(branch(x)), args=(x,))


def test_what_is_equal_is_still_refused_where_it_would_be_summed(two, x, either_way):
    with two.scope():
        v = rx.Variable(1.0)
    with pytest.raises(ReduceError, match="2 times"):
        two.run(lambda x: rx.get_replica_context().all_reduce("sum", v.value), args=(x,))


def test_a_collective_that_not_all_replicas_reach_is_refused(two, x):
    def fn(x):
        return jax.lax.cond(x > 1, lambda: jax.lax.psum(x, "replica"), lambda: 1.0)

    with pytest.raises(ProgramError, match=r"psum.*test_replica_program\.py.*`cond`"):
        two.run(fn, args=(x,))


def test_collectives_under_equal_predicates_are_fine(two, x, either_way):
    def fn(x):
        together = jax.lax.psum(x, "replica")
        chosen = jax.lax.cond(together > 1, lambda: jax.lax.psum(x, "replica"), lambda: 1.0)
        return jax.lax.fori_loop(0, 3, lambda i, c: c + jax.lax.pmax(x, "replica"), chosen)

    assert float(two.run(fn, args=(x,))) == 9.0


def test_callbacks_may_answer_each_replica_differently(two, x):
    with two.scope():
        v = rx.Variable(0.0, name="told")
    shape = jax.ShapeDtypeStruct((), jnp.float32)
    with pytest.raises(ReplicaDivergenceError, match=r"'told'.*pure_callback"):
        two.run(lambda: v.assign(jax.pure_callback(lambda: np.float32(1), shape)))


def test_a_function_under_jit_reads_variables(two, x):
    """It was traced with a placeholder's zeros, and went on computing with them."""
    with two.scope():
        v = rx.Variable([3.0, 4.0])
    f = jax.jit(lambda x: x * v.value)
    for number in (1.0, 2.0):
        v.assign([number, number])
        result = two.run(lambda x: f(x), args=(x,))
        assert [component.tolist() for component in result.values] == [[number] * 2, [2 * number] * 2]
        assert rx.function(lambda: f(jnp.float32(3.0)))().tolist() == [3 * number] * 2


@pytest.fixture
def w(two):
    with two.scope():
        return rx.Variable(3.0)


GRADIENTS = {
    "cond around a sum": lambda x, total: jax.lax.cond(x > 1, lambda: total, lambda: 2 * total),
    "coefficient": lambda x, total: total * branch(x),
    "jit": lambda x, total: jax.jit(lambda t: jax.lax.cond(x > 1, lambda: t, lambda: 2 * t))(total),
    "remat": lambda x, total: jax.checkpoint(lambda t: jax.lax.cond(x > 1, lambda: t**2, lambda: 2 * t))(total),
}


@pytest.mark.parametrize("loss", GRADIENTS.values(), ids=GRADIENTS)
def test_a_gradient_in_which_jax_would_leave_out_the_sum_is_refused(two, x, w, loss):
    """The gradient of the first was 8 instead of 9."""

    def summed(x, own):
        total = jax.lax.psum(x * w.value, "replica")
        return loss(x, jax.lax.pcast(total, "replica", to="varying") if own else total)

    with pytest.raises(ProgramError, match=r"gradient.*test_replica_program\.py.*pcast"):
        two.run(lambda x: rx.grad(lambda: summed(x, False), w)(), args=(x,))
    gradient = two.run(lambda x: rx.grad(lambda: summed(x, True), w)(), args=(x,))
    share, step = 3.0, 1e-2  # of `total`, the sum of x * w
    by_hand = [sum(float(loss(jnp.float32(v), share * u)) for v in (1.0, 2.0)) for u in (3.0 + step, 3.0 - step)]
    assert float(gradient) == pytest.approx((by_hand[0] - by_hand[1]) / (2 * step), rel=1e-3)


def test_plain_gradients_go_by_the_same_rule(two, x, w):
    found = two.run(lambda x: jax.grad(lambda u: x * u + branch(x) * u)(w.value), args=(x,))
    assert float(found) == pytest.approx(sum(v + float(branch(jnp.float32(v))) for v in (1.0, 2.0)))
    assert float(two.run(lambda x: jax.grad(lambda u: x * u)(w.value), args=(x,))) == 3.0


def test_gradients_of_what_each_replica_chooses_for_itself_are_summed(two, x, w):
    def loss(x):
        return jax.lax.cond(x > 1, lambda: w.value, lambda: 2 * w.value) * branch(x)

    assert float(two.run(lambda x: rx.grad(lambda: loss(x), w)(), args=(x,))) == 50.0
    remat = two.run(lambda x: rx.grad(lambda: jax.checkpoint(lambda u: x * u * branch(x))(w.value), w)(), args=(x,))
    assert float(remat) == 40.0


def test_what_merge_call_computes_from_a_replicas_own_branch_is_reduced(two, x, either_way):
    """It was returned as it is, one number on each replica."""

    def merged(strategy, own):
        value = branch(own.component)
        return strategy.reduce("mean", value), strategy.reduce("sum", value)

    mean, total = two.run(lambda x: rx.get_replica_context().merge_call(merged, args=(x,)), args=(x,))
    assert (float(mean), float(total)) == (15.0, 30.0)


@pytest.mark.parametrize("op", ["mean", "sum"])
def test_what_merge_call_has_equal_is_not_reduced_again(two, x, op, either_way):
    def merged(strategy):
        return strategy.reduce(op, jnp.float32(2.0))

    def call():
        return two.run(lambda: rx.get_replica_context().merge_call(merged))

    if op == "mean":
        assert float(call()) == 2.0
    else:
        with pytest.raises(ReduceError):
            call()
