from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
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


def test_a_derivative_that_passes_a_variable_by_is_told(caplog):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, name="passed_by")])
        w = rx.Variable(3.0, name="w")

    def wrong(x):
        return jax.grad(lambda _: jnp.sum(model(x)) + w.value)([w.value, model.trainable_variables[0].value])

    for _ in range(2):
        gradients = strategy.run(wrong, args=(jnp.ones((1, 2)),))
        rx.function(lambda: strategy.run(wrong, args=(jnp.ones((2, 2)),)))()
    assert not any(np.any(gradient) for gradient in gradients)
    (record,) = caplog.records
    for text in ("passed_by/kernel'", "'w'", "rx.value_and_grad"):
        assert text in record.getMessage()
    assert "bias" not in record.getMessage()


@pytest.mark.nightly
def test_other_derivatives_are_not_complained_about(caplog):
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.BatchNormalization()])
        w = rx.Variable(3.0)

    def step(x):
        values = [variable.value for variable in model.trainable_variables]
        others = [variable.value for variable in model.non_trainable_variables]
        by_values = jax.grad(lambda values: jnp.sum(model.stateless_call(values, others, x)[0]))(values)
        by_input = jax.grad(lambda x: jnp.sum(model(x)) * w.value)(x)
        by_value = jax.grad(lambda value: value**2)(w.value)
        penalty = lambda: jnp.sum(jax.grad(lambda x: jnp.sum(model(x) * w.value))(x) ** 2)  # noqa: E731
        return by_values, by_input, by_value, rx.grad(penalty, [w, *model.trainable_variables])()

    *_, by_value, second = strategy.run(step, args=(jnp.ones((1, 2)),))
    assert float(by_value) == 6.0
    assert float(second[0]) != 0.0
    assert not caplog.records
