"""Random programs of loops and branches over variables, against the same in Python."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies as st

import replicax as rx

COUNT = 3  # variables
LEAVES = st.tuples(
    st.sampled_from(["set", "add", "scale"]), st.integers(0, COUNT - 1), st.integers(0, COUNT - 1), st.integers(-2, 2)
)


def _blocks(inner):
    body = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        st.tuples(st.just("scan"), st.integers(0, 3), body),
        st.tuples(st.just("fori"), st.integers(0, 3), body),
        st.tuples(st.just("while"), st.integers(1, 3), body),
        st.tuples(st.just("cond"), st.integers(0, COUNT - 1), body, body),
        st.tuples(st.just("switch"), st.integers(0, COUNT - 1), body, body, body),
    )


PROGRAMS = st.lists(st.recursive(LEAVES, _blocks, max_leaves=6), min_size=1, max_size=3)


def leaf(kind, target, source, constant, values):
    if kind == "set":
        return values[source] + constant
    if kind == "add":
        return values[target] + 0.5 * values[source] + constant
    return 0.5 * values[target] * jnp.cos(values[source])


def by_replicax(program, variables):
    def run(block):
        for each in block:
            statement(each)

    def statement(each):
        kind, *rest = each
        if kind in ("set", "add", "scale"):
            target, source, constant = rest
            variables[target].assign(leaf(kind, target, source, constant, [v.value for v in variables]))
        elif kind == "scan":
            rx.lax.scan(lambda carry, _: (run(rest[1]), None), length=rest[0])
        elif kind == "fori":
            rx.lax.fori_loop(0, rest[0], lambda i, carry: run(rest[1]))
        elif kind == "while":
            rx.lax.while_loop(lambda rounds: rounds < rest[0], lambda rounds: (run(rest[1]), rounds + 1)[1], 0)
        elif kind == "cond":
            rx.lax.cond(variables[rest[0]].value > 0, lambda: run(rest[1]), lambda: run(rest[2]))
        else:
            index = jnp.sign(variables[rest[0]].value).astype(int) + 1
            rx.lax.switch(index, [lambda block=block: run(block) for block in rest[1:]])

    run(program)


def by_python(program, values):
    for kind, *rest in program:
        if kind in ("set", "add", "scale"):
            target, source, constant = rest
            values[target] = leaf(kind, target, source, constant, values)
        elif kind in ("scan", "fori", "while"):
            for _ in range(rest[0]):
                by_python(rest[1], values)
        elif kind == "cond":
            by_python(rest[1] if values[rest[0]] > 0 else rest[2], values)
        else:
            by_python(rest[1 + int(np.sign(values[rest[0]])) + 1], values)


@settings(max_examples=6, deadline=None)
@given(PROGRAMS, st.booleans())
def test_random_programs(program, in_a_replica):
    start = [1.0, -0.5, 0.25]
    strategy = rx.MirroredStrategy(devices=["cpu:0", "cpu:1"]) if in_a_replica else rx.OneDeviceStrategy("cpu:0")
    with strategy.scope():
        variables = [rx.Variable(value, name=f"v{i}") for i, value in enumerate(start)]
    strategy.run(lambda: by_replicax(program, variables))
    values = [jnp.float32(value) for value in start]
    by_python(program, values)
    np.testing.assert_allclose([v.numpy() for v in variables], values, rtol=1e-4, atol=1e-5)
