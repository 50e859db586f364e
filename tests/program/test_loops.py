"""`rx.lax.cond`, `rx.lax.scan` and the like: results, and carried variables. Replicas: test_carrying.py."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ProgramError, VariableError

ROWS = np.arange(1.0, 5.0, dtype=np.float32)


@pytest.fixture(params=["program", "at once", "op by op"])
def ran(request):
    """Runs a function in a program, as it is, and operation by operation."""
    rx.config.run_eagerly(request.param == "op by op")
    yield rx.function if request.param == "program" else (lambda fn: fn)
    rx.config.run_eagerly(False)


def test_what_a_round_assigns_the_next_one_reads(ran):
    total, rounds = rx.Variable(1.0), rx.Variable(0)

    def loop(xs):
        def body(carry, x):
            rounds.assign_add(1)
            return carry * 2, total.assign(total * x)

        return rx.lax.scan(body, jnp.float32(1.0), xs)

    carry, products = ran(loop)(ROWS)
    assert float(carry) == 16.0
    np.testing.assert_allclose(products, np.cumprod(ROWS))
    assert (float(total.value), int(rounds.value)) == (24.0, 4)


def test_scan_has_jax_options(ran):
    order = rx.Variable(0.0)

    def loop():
        return rx.lax.scan(lambda c, x: (c, order.assign(order * 10 + x)), None, ROWS, reverse=True, unroll=2)[1]

    np.testing.assert_allclose(ran(loop)(), [4321.0, 432.0, 43.0, 4.0])
    _, counted = ran(lambda: rx.lax.scan(lambda c, _: (c, order.assign_add(1.0)), length=3))()
    np.testing.assert_allclose(counted, [4322.0, 4323.0, 4324.0])


def test_while_loop_reads_variables_in_its_condition(ran):
    x, rounds = rx.Variable(100.0), rx.Variable(0)

    def halve(carry):
        x.assign(x / 2)
        rounds.assign_add(1)
        return carry + 1

    result = ran(lambda limit: rx.lax.while_loop(lambda _: x.value > limit, halve, jnp.int32(5)))(1.0)
    assert (int(result), int(rounds.value), float(x.value)) == (12, 7, 0.78125)


@pytest.mark.parametrize("bounds", [(0, 4), (2, 2), (3, 1)])
def test_fori_loop(ran, bounds):
    total = rx.Variable(0)

    def body(i, carry):
        total.assign_add(i)
        return carry + 1

    result = ran(lambda lower, upper: rx.lax.fori_loop(lower, upper, body, 0))(*bounds)
    assert (int(result), int(total.value)) == (len(range(*bounds)), sum(range(*bounds)))


def test_cond_and_switch_take_one_branch(ran):
    a, b = rx.Variable(1.0), rx.Variable(2.0)
    step = ran(lambda p: rx.lax.cond(p > 0, lambda x: a.assign_add(x), lambda x: b.assign_add(x) * 0 - x, p))
    assert float(step(jnp.float32(3.0))) == 4.0
    assert (float(a.value), float(b.value)) == (4.0, 2.0)
    assert float(step(jnp.float32(-3.0))) == 3.0
    assert (float(a.value), float(b.value)) == (4.0, -1.0)
    choose = ran(lambda i: rx.lax.switch(i, [lambda n=n: a.assign(jnp.float32(n)) for n in range(3)]))
    assert [float(choose(jnp.int32(i))) for i in (1, 2, 7, -5)] == [1.0, 2.0, 2.0, 0.0]


def test_loops_and_branches_nest(ran):
    evens, calls = rx.Variable(0), rx.Variable(0)

    def outer(i, carry):
        def inner(carry, j):
            calls.assign_add(1)
            rx.lax.cond((i + j) % 2 == 0, lambda: evens.assign_add(1), lambda: evens.value)
            return carry + j, None

        return rx.lax.scan(inner, carry, jnp.arange(3))[0]

    assert int(ran(lambda: rx.lax.fori_loop(0, 4, outer, jnp.int32(0)))()) == 12
    assert (int(calls.value), int(evens.value)) == (12, 6)


def test_a_loop_is_differentiated_with_respect_to_variables_that_it_assigns(ran):
    w, x = rx.Variable(2.0), rx.Variable(3.0)

    def loss():
        def body(carry, row):
            x.assign(x * w * row)
            return carry + rx.lax.cond(row > 2, lambda: x.value, lambda: 0.0 * x.value), None

        return rx.lax.scan(body, jnp.float32(0.0), ROWS)[0]

    def by_jax(w, x):
        total = 0.0
        for row in ROWS:
            x = x * w * row
            total = total + (x if row > 2 else 0.0)
        return total

    value, gradients = ran(rx.value_and_grad(loss, [w, x]))()
    expected, wanted = jax.value_and_grad(by_jax, (0, 1))(2.0, 3.0)
    np.testing.assert_allclose(value, expected)
    np.testing.assert_allclose(gradients, wanted)
    assert float(x.value) == 3.0 * 2.0**4 * 24.0


def test_a_gradient_inside_a_round_updates_a_weight(ran):
    w = rx.Variable(0.0)

    def body(carry, row):
        loss, gradient = rx.value_and_grad(lambda: (w - row) ** 2, w)()
        w.assign_sub(0.25 * gradient)
        return carry, loss

    losses = ran(lambda: rx.lax.scan(body, None, ROWS)[1])()
    expected, value = [], 0.0
    for row in ROWS:
        expected.append((value - row) ** 2)
        value -= 0.5 * (value - row)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    np.testing.assert_allclose(w.value, value, rtol=1e-6)


def test_random_keys_are_carried(ran):
    key = rx.Variable(jax.random.key(0))

    def body(carry, _):
        mine, new = jax.random.split(key.value)
        key.assign(new)
        return carry, jax.random.uniform(mine)

    drawn = ran(lambda: rx.lax.scan(body, None, length=3)[1])()
    assert len(set(np.asarray(drawn).tolist())) == 3


def test_bodies_without_variables_are_jaxs(ran):
    carry, ys = ran(lambda: rx.lax.scan(lambda c, x: (c + x, c), 0.0, ROWS))()
    assert float(carry) == 10.0
    np.testing.assert_allclose(ys, [0.0, 1.0, 3.0, 6.0])
    assert float(ran(lambda: rx.lax.cond(True, lambda: 1.0, lambda: 2.0))()) == 1.0


def test_inside_of_jit_a_loop_is_jaxs_and_assigning_is_refused():
    v = rx.Variable(0.0)
    assert float(jax.jit(lambda x: rx.lax.fori_loop(0, 3, lambda i, c: c + x, 0.0))(2.0)) == 6.0
    with pytest.raises(ProgramError, match=r"Decorate that function with @rx\.function"):
        jax.jit(lambda: rx.lax.scan(lambda c, x: (c, v.assign(x)), None, ROWS))()


def test_plain_loops_that_assign_name_those_that_carry():
    v = rx.Variable(0.0, name="total")
    with pytest.raises(ProgramError, match=r"'total'.*rx\.lax\.cond.*rx\.lax\.scan"):
        rx.function(lambda: jax.lax.scan(lambda c, x: (c, v.assign(x)), None, ROWS))()
    assert float(v.value) == 0.0


def test_another_shape_or_dtype_is_refused():
    v = rx.Variable(np.zeros(2, np.float32), name="v")
    with pytest.raises(VariableError, match=r"'v' has shape \(2,\)"):
        rx.function(
            lambda: rx.lax.cond(v.value[0] > 0, lambda: v.assign(jnp.zeros(3)), lambda: v.assign(jnp.zeros(2)))
        )()


def test_conditions_only_read():
    v = rx.Variable(0.0, name="v")
    with pytest.raises(VariableError, match=r"'v' is assigned by the condition of rx\.lax\.while_loop"):
        rx.function(lambda: rx.lax.while_loop(lambda c: v.assign_add(1.0) < 3, lambda c: c, 0))()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: rx.lax.cond(jnp.ones(2), lambda: 1, lambda: 2), r"shape \(2,\)"),
        (lambda: rx.lax.cond("x", lambda: 1, lambda: 2), r"`pred` of rx.lax.cond is a boolean or number .*'x'"),
        (lambda: rx.lax.cond(None, lambda: 1, lambda: 2), r"`pred` of rx.lax.cond is a boolean or number .*None"),
        (lambda: rx.lax.cond(1j, lambda: 1, lambda: 2), r"`pred` of rx.lax.cond is a boolean or number .*1j"),
        (lambda: rx.lax.switch(1.7, [lambda: 1, lambda: 2]), r"`index` of rx.lax.switch is an integer .*1\.7"),
        (lambda: rx.lax.switch(jnp.float32(1), [lambda: 1, lambda: 2]), r"an integer .*float32"),
        (lambda: rx.lax.switch(True, [lambda: 1, lambda: 2]), r"`index` of rx.lax.switch is an integer .*True"),
        (lambda: rx.lax.switch("1", [lambda: 1, lambda: 2]), r"`index` of rx.lax.switch is an integer .*'1'"),
        (lambda: rx.lax.switch([1], [lambda: 1, lambda: 2]), r"`index` of rx.lax.switch .*shape \(1,\)"),
        (lambda: rx.lax.cond(True, 3, lambda: 2), "`true_fun` of rx.lax.cond must be callable"),
        (lambda: rx.lax.switch(0, []), "at least one function"),
        (lambda: rx.lax.scan(None), "`f` of rx.lax.scan"),
        (lambda: rx.function(lambda: rx.lax.scan(lambda c, x: c, 0.0, ROWS))(), r"a pair \(carry, y\)"),
        (lambda: rx.lax.while_loop(lambda c: c, 1), "`body_fun` of rx.lax.while_loop"),
        (lambda: rx.lax.fori_loop(0, 1, 1), "`body_fun` of rx.lax.fori_loop"),
    ],
)
def test_wrong_arguments(call, said):
    for run in (call, rx.function(lambda: call())):
        with pytest.raises(ArgumentError, match=said):
            run()


@pytest.mark.daily(6)
@pytest.mark.parametrize(
    "decides", [True, 2, 0.5, -1.0, np.bool_(True), np.float16(1), jnp.bfloat16(1), np.array(3), np.uint8(1)]
)
def test_numbers_and_bools_and_variables_decide(ran, decides):
    for pred in (decides, rx.Variable(decides), keras.Variable(decides)):
        assert ran(lambda pred=pred: rx.lax.cond(pred, lambda: 1, lambda: 2))() == 1
    assert ran(lambda pred: rx.lax.cond(pred, lambda: 1, lambda: 2))(decides) == 1


def test_an_integer_of_any_width_and_a_variable_choose(ran):
    for index in (1, np.int8(1), jnp.uint32(1), np.array(1), rx.Variable(1), keras.Variable(1, dtype="int32")):
        assert ran(lambda index=index: rx.lax.switch(index, [lambda: 10, lambda: 20]))() == 20


def test_a_failing_loop_leaves_variables_as_they_were():
    v = rx.Variable(0.0)

    def body(carry, x):
        v.assign_add(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rx.function(lambda: rx.lax.scan(body, None, ROWS))()
    assert float(v.value) == 0.0


def test_a_loop_outside_of_programs_is_compiled_once_for_its_body():
    v, traced = rx.Variable(0.0), []

    def body(carry, x):
        traced.append(x)
        return carry, v.assign_add(x)

    for _ in range(3):
        rx.lax.scan(body, None, ROWS)
    assert float(v.value) == 30.0
    assert len(traced) == 2  # once to find the variables, once with them
