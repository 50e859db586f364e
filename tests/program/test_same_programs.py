"""Whether two traces have made the same program: it must be said of equal ones, and of no others."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.program.same_programs import are_same_programs


def traced(fn, number):
    return jax.make_jaxpr(jax.jit(lambda x: fn(x, number)))(jnp.ones(3))


def in_a_scan(x, number):
    return jax.lax.scan(lambda carry, row: (carry + number * row, row), 0.0, x)[0]


def in_a_condition(x, number):
    return jax.lax.cond(x[0] > 0, lambda: x * number, lambda: x)


def in_a_loop(x, number):
    return jax.lax.fori_loop(0, 3, lambda i, x: x * number, x)


def as_a_length(x, number):
    return jax.lax.fori_loop(0, int(number), lambda i, x: x * 2.0, x)


def in_a_rule(x, number):
    @jax.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, None), lambda _, g: (g * number,))
    return jax.grad(lambda x: f(jax.nn.relu(x)).sum())(x)


def on_the_host(x, number):
    return jax.pure_callback(lambda x: np.asarray(x) * np.float32(number), jax.typeof(x), x)


def by_a_partial(x, number):
    call = functools.partial(lambda number, x: np.asarray(x) * np.float32(number), number)
    return jax.pure_callback(call, jax.typeof(x), x)


def printed(x, number):
    jax.debug.callback(lambda x: print(x, number), x)
    return x


FUNCTIONS = {
    "a number": lambda x, number: x + number,
    "an array of NumPy": lambda x, number: x + np.full(3, number, np.float32),
    "an array": lambda x, number: x + jnp.full(3, number) + jnp.asarray([number, 1.0, 2.0]),
    "an order": lambda x, number: (x - 1.0) * 2.0 if number == 2.0 else (x * 2.0) - 1.0,
    "operands": lambda x, number: (x + 1.0) - x if number == 2.0 else x - (x + 1.0),
    "a shape": lambda x, number: jnp.ones(int(number)),
    "a type": lambda x, number: x.astype("bfloat16" if number == 2.0 else "float16"),
    "a key": lambda x, number: jax.random.normal(jax.random.key(int(number)), (3,)),
    "a result": lambda x, number: (x, x + 1.0) if number == 2.0 else (x + 1.0, x),
} | {
    fn.__name__: fn
    for fn in (
        in_a_scan, in_a_condition, in_a_loop, as_a_length, in_a_rule, on_the_host, by_a_partial, printed
    )
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_programs_are_the_same_where_the_number_is(name):
    fn = FUNCTIONS[name]
    assert are_same_programs(traced(fn, 2.0), traced(fn, 2.0))
    assert not are_same_programs(traced(fn, 2.0), traced(fn, 3.0))


def on_the_host(number, is_assigned=True):
    def count(x):
        return x * number if x.sum() < 0 or not is_assigned else again(x)

    def again(x):
        return count(-x - 1) if x.sum() >= 0 else later

    if is_assigned:
        later = 1.0
    return jax.make_jaxpr(lambda x: jax.pure_callback(count, x, x))(jnp.ones(3))


@pytest.mark.parametrize("is_assigned", [True, False])
def test_host_functions_that_call_themselves_or_name_what_is_not_there_yet_are_compared(is_assigned):
    assert are_same_programs(on_the_host(2.0, is_assigned), on_the_host(2.0, is_assigned))
    assert not are_same_programs(on_the_host(2.0, is_assigned), on_the_host(3.0, is_assigned))
