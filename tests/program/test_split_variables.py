"""Splitting steps that assign variables in the forward pass, have several gradients, or call the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.experimental import io_callback

from replicax.errors import ProgramError
from replicax.program.ir.jaxprs import marked_as_gradient
from tests.program.test_split import IN, OPTIMIZERS, OUT, ROWS, ZEROS, Cut, X, adam, gradient, loss_of, weights

# Variables that the forward pass assigns.


def test_a_moving_average_costs_a_batchs_statistics():
    def step(v, x):
        mean = jnp.mean(x @ v["w"], axis=0)
        return {"mean": v["mean"] * 0.99 + 0.01 * mean}, mean

    cut = Cut(step, weights(mean=np.zeros(OUT)), X).check()
    assert cut.sent == [(OUT,)]
    assert "add" in cut.server
    assert cut.read_by_server == {"mean"}
    assert cut.read_by_worker == {"w"}


def test_a_metrics_total_costs_a_number():
    def step(v, x):
        return {"total": v["total"] + jnp.sum(x**2), "count": v["count"] + x.shape[0]}, ()

    cut = Cut(step, weights(total=0, count=0), X).check()
    assert cut.sent == [()]
    assert cut.server == ["add", "add"]
    assert cut.read_by_worker == set()


def test_an_entry_of_a_table_costs_its_row():
    def step(v, x):
        return {"table": v["table"].at[2].add(jnp.sum(x, axis=0))}, ()

    cut = Cut(step, weights(table=np.zeros((1000, IN))), X).check()
    assert sum(np.prod(shape) for shape in cut.sent) == IN


def test_a_counter_costs_nothing():
    cut = Cut(lambda v, x: ({"steps": v["steps"] + 1}, ()), weights(steps=0), X).check()
    assert cut.sent == []
    assert cut.server == ["add"]
    assert cut.worker == []


def test_something_else_altogether_is_sent_whole():
    cut = Cut(lambda v, x: ({"last": x}, ()), weights(last=np.zeros((ROWS, IN))), X).check()
    assert cut.sent == [(ROWS, IN)]
    assert cut.read_by_server == set()
    cut = Cut(lambda v, x: ({"last": jnp.sin(x)}, ()), weights(last=np.zeros((ROWS, IN))), X).check()
    assert cut.sent == [(ROWS, IN)]
    assert cut.server == []


@pytest.mark.parametrize("data", [True, False])
def test_an_expensive_function_of_the_old_value_is_the_workers(data):
    """A power iteration, as spectral normalisation does it."""

    def step(v, x):
        u = v["square"] @ v["u"]
        if data:
            u = u + jnp.sum(x)
        return {"u": u / jnp.sqrt(jnp.sum(u**2))}, ()

    cut = Cut(step, {"square": jnp.eye(IN) * 2, "u": jnp.ones(IN)}, X).check()
    assert cut.sent == [(IN,)]
    assert cut.server == []
    assert cut.read_by_worker == {"square", "u"}


@pytest.mark.parametrize(
    ("new", "sent"),
    [
        (lambda v, x: 3.0, []),
        (lambda v, x: jnp.zeros((IN, OUT)), []),
        (lambda v, x: v["other"], []),
        (lambda v, x: v["w"], []),
        (lambda v, x: gradient(v["w"], x), [(IN, OUT)]),
        (lambda v, x: -gradient(v["w"], x), [(IN, OUT)]),
    ],
    ids=["literal", "constant", "variable", "itself", "gradient", "of_gradient"],
)
def test_whatever_is_assigned_the_server_has_it(new, sent):
    cut = Cut(lambda v, x: ({"w": new(v, x)}, ()), weights(other=ZEROS), X).check()
    assert cut.sent == sent
    assert cut.served == {"w"}


def test_two_variables_may_be_swapped():
    cut = Cut(lambda v, x: ({"a": v["b"], "b": v["a"]}, ()), {"a": jnp.zeros(2), "b": jnp.ones(2)}, X).check()
    assert cut.sent == []


def test_a_variable_that_is_not_read_is_assigned():
    cut = Cut(lambda v, x: ({"new": jnp.sum(x), "w": v["w"] - gradient(v["w"], x)}, ()), weights(), X).check()
    assert cut.served == {"new", "w"}


# Only gradients: the inner cut, of what one replica does.


def test_with_only_gradients_everything_else_stays_with_the_worker():
    def step(v, x):
        new, _ = adam(v, x)
        return {**new, "total": v["total"] + jnp.sum(x), "zero": 0.0}, ()

    cut = Cut(step, OPTIMIZERS["adam"][1] | weights(total=0, zero=1), X, only_gradients=True).check()
    assert cut.served == {"w", "m", "s"}
    assert cut.sent == [(IN, OUT)]


# Several gradients.


def two_optimizers(v, x):
    g_a = gradient(v["a"], x)
    g_b = marked_as_gradient(jax.grad(lambda b: loss_of(v["a"], x) * jnp.sum(b**2))(v["b"]))
    return {"a": v["a"] - 0.1 * g_a, "b": v["b"] - 0.2 * g_b, "m": 0.5 * v["m"] + g_b}, ()


def test_two_optimizers_may_update_after_all_gradients():
    variables = {"a": weights()["w"], "b": weights(2)["w"], "m": jnp.zeros((IN, OUT))}
    cut = Cut(two_optimizers, variables, X).check()
    assert cut.sent == [(IN, OUT), (IN, OUT)]
    assert cut.served == {"a", "b", "m"}


def test_a_gradient_may_follow_an_update():
    def step(v, x):
        a = v["a"] - 0.1 * gradient(v["a"], x)
        return {"a": a, "b": v["b"] - gradient(v["b"] + a, x)}, ()

    Cut(step, {"a": weights()["w"], "b": weights(2)["w"]}, X).check()


def test_a_step_without_gradients_is_the_workers():
    cut = Cut(lambda v, x: ({}, {"logits": x @ v["w"]}), weights(unused=1), X).check()
    assert (cut.sent, cut.server, cut.served) == ([], [], set())
    assert cut.worker == ["dot_general"]
    assert cut.read_by_worker == {"w"}


# What happens outside of the program.


def test_prints_stay_with_the_worker(capsys):
    def step(v, x):
        g = gradient(v["w"], x)
        new = v["w"] - 0.1 * g
        jax.debug.print("{} {}", jnp.sum(x), jnp.sum(new))
        return {"w": new}, ()

    cut = Cut(step, weights(), X)
    assert not any(name.startswith("debug") for name in cut.server)
    outputs, sent = cut.split.worker(cut.args)
    cut.split.server(cut.args, sent)
    jax.effects_barrier()
    assert outputs == [None]
    assert capsys.readouterr().out.count("\n") == 1


def test_what_the_host_makes_of_a_gradient_is_sent():
    calls = []

    def on_host(g):
        calls.append(g.shape)
        return np.sign(g)

    def step(v, x):
        g = gradient(v["w"], x) * v["rate"]
        return {"w": v["w"] - io_callback(on_host, jax.ShapeDtypeStruct(g.shape, g.dtype), g)}, ()

    cut = Cut(step, weights(rate=0.1), X)
    _, sent = cut.split.worker(cut.args)
    (new,) = cut.split.server(cut.args, sent)
    assert calls == [(IN, OUT)]
    assert cut.sent == [(IN, OUT)]
    assert float(jnp.max(jnp.abs(new - cut.args[0]))) == pytest.approx(1.0, abs=1e-6)


def test_what_the_host_tells_without_data_is_the_workers_to_ask():
    calls = []

    def on_host(steps):
        calls.append(float(steps))
        return np.float32(0.5)

    def step(v, x):
        rate = io_callback(on_host, jax.ShapeDtypeStruct((), np.float32), v["steps"])
        return {"w": v["w"] * rate - gradient(v["w"], x), "steps": v["steps"] + 1}, ()

    cut = Cut(step, weights(steps=3), X)
    _, sent = cut.split.worker(cut.args)
    cut.split.server(cut.args, sent)
    assert calls == [3.0]
    assert sorted(cut.sent) == [(), (IN, OUT)]


# Any small step.

BINARY = [jnp.add, jnp.subtract, jnp.multiply, jnp.maximum]
UNARY = [jnp.tanh, jnp.abs, lambda x: x * 0.5, lambda x: jnp.sum(x) + jnp.zeros_like(x), lambda x: x[::-1]]


@st.composite
def recipes(draw):
    """Operations on a growing list of values, which begins with 3 variables and 1 piece of data; marks; assignments."""
    size, operations = 4, []
    for _ in range(draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["unary", "binary", "binary", "mark"]))
        fn = draw(st.integers(0, 3 if kind == "binary" else len(UNARY) - 1))
        operations.append((kind, fn, draw(st.integers(0, size - 1)), draw(st.integers(0, size - 1))))
        size += 1
    assigned = draw(st.dictionaries(st.sampled_from("abc"), st.integers(0, size - 1), min_size=1))
    return operations, assigned, draw(st.lists(st.integers(0, size - 1), max_size=2)), draw(st.booleans())


@settings(max_examples=150)
@given(recipes())
def test_the_halves_of_any_step_give_what_the_step_gives(recipe):
    operations, assigned, results, only_gradients = recipe

    def step(v, x):
        values = [*v.values(), x]
        for kind, fn, a, b in operations:
            if kind == "mark":
                values.append(marked_as_gradient(values[a]))
            else:
                values.append(UNARY[fn](values[a]) if kind == "unary" else BINARY[fn](values[a], values[b]))
        return {name: values[i] for name, i in assigned.items()}, [values[i] for i in results]

    variables = {name: jnp.arange(3.0) - i for i, name in enumerate("abc")}
    try:
        cut = Cut(step, variables, jnp.array([0.3, -2.0, 1.5]), only_gradients=only_gradients)
    except ProgramError:
        return
    cut.check()
    assert len(set(cut.split.sent)) == len(cut.split.sent)
