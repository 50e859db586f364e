from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.errors import ProgramError


def assigned_in_scan(v):
    def body(carry, x):
        v.assign(carry)
        return carry + x, x

    return jax.lax.scan(body, 0.0, jnp.ones(2))


def assigned_in_cond(v):
    return jax.lax.cond(v.value > 0, lambda: v.assign(1.0), lambda: v.assign(2.0))


def assigned_in_while(v):
    def body(count):
        v.assign_add(1.0)
        return count + 1

    return jax.lax.while_loop(lambda count: count < 2, body, 0)


INNER_TRACES = {
    "scan": assigned_in_scan,
    "cond": assigned_in_cond,
    "while_loop": assigned_in_while,
    "checkpoint": lambda v: jax.checkpoint(lambda x: v.assign(x) * 2)(1.0),
    "grad": lambda v: jax.grad(lambda x: v.assign(x) * 2)(1.0),
    "jit": lambda v: jax.jit(lambda x: v.assign(x) * 2)(1.0),
    "vmap": lambda v: jax.vmap(lambda x: v.assign(x.sum()))(jnp.ones((2, 3))),
}


@pytest.mark.parametrize("place", INNER_TRACES)
@pytest.mark.parametrize("run", ["function", "run"])
def test_an_assignment_cannot_leave_an_inner_trace(two, place, run):
    with two.scope():
        v = rx.Variable(5.0, name="v")
    step = lambda: INNER_TRACES[place](v) and None  # noqa: E731
    with pytest.raises(ProgramError, match=r"'v'.*(?:return the new value|rx\.function)"):
        rx.function(step)() if run == "function" else two.run(step)
    assert float(v.value) == 5.0


def test_variables_may_be_read_inside_an_inner_trace(two):
    with two.scope():
        v = rx.Variable(3.0)

    def step():
        v.assign(4.0)
        total, _ = jax.lax.scan(lambda carry, x: (carry + v * x, None), 0.0, jnp.ones(2))
        return total + jax.lax.cond(v.value > 0, lambda: v * 10, lambda: 0.0) + jax.grad(lambda x: x * v)(1.0)

    assert float(two.run(step)) == 8.0 + 40.0 + 4.0


def test_a_returned_value_leaves_an_inner_trace(two):
    with two.scope():
        v = rx.Variable(1.0)

    def step():
        total, _ = jax.lax.scan(lambda carry, _: (carry * 2, None), v.value, None, length=3)
        v.assign(total)

    two.run(step)
    assert float(v.value) == 8.0
