"""A function that reads a variable, made once and used again in one step, after the variable has changed.

JAX keeps what it has traced of it: the body of a loop, a branch, a function under `jax.jit` or `jax.checkpoint`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

ROWS = np.ones(4, "float32")


def jitted(w):
    return jax.jit(lambda x: x * w.value)


def checkpointed(w):
    return jax.checkpoint(lambda x: x * w.value)


def scanned(w):
    def body(carry, _):
        return carry * w.value, None

    return lambda x: jax.lax.scan(body, x, None, length=1)[0]


def while_loop(w):
    def goes_on(state):
        return state[0] < 1

    def body(state):
        return state[0] + 1, state[1] * w.value

    return lambda x: jax.lax.while_loop(goes_on, body, (0, x))[1]


def fori_loop(w):
    def body(_, carry):
        return carry * w.value

    return lambda x: jax.lax.fori_loop(0, 1, body, x)


def branched(w):
    def times(x):
        return x * w.value

    def same(x):
        return x

    return lambda x: jax.lax.cond(jnp.sum(x) > 0, times, same, x)


MAKERS = [jitted, checkpointed, scanned, while_loop, fori_loop, branched]
# jax.lax.while_loop has no gradient; with fixed bounds, fori_loop is a scan and has one.
WITH_GRADIENT = [jitted, checkpointed, scanned, fori_loop, branched]


class Host:
    """One way to run a step, whose results are summed over the replicas."""

    def __init__(self, strategy: rx.Strategy | None):
        self.strategy = strategy

    def variable(self, kind) -> object:
        with (self.strategy or rx.get_strategy()).scope():
            return rx.Variable(np.float32(1)) if kind == "rx" else keras.Variable(1.0, dtype="float32")

    def run(self, step) -> list[float]:
        """Returns the step's results for four rows of ones."""
        if self.strategy is None:
            return [float(result) for result in rx.function(step)(ROWS)]
        [batch] = self.strategy.distribute_dataset([ROWS])
        results = self.strategy.run(step, args=(batch,))
        return [float(self.strategy.reduce("sum", result, axis=None)) for result in results]


@pytest.fixture(params=["function", "one device", "two replicas"])
def host(request, two) -> Host:
    made = {"function": lambda: None, "one device": lambda: rx.OneDeviceStrategy("cpu:0"), "two replicas": lambda: two}
    return Host(made[request.param]())


@pytest.mark.daily(9)
@pytest.mark.parametrize("kind", ["rx", "keras"])
@pytest.mark.parametrize("make", MAKERS)
def test_after_an_assignment_the_new_value_is_read(host, make, kind):
    w = host.variable(kind)
    fn = make(w)

    def step(x):
        before = fn(x)
        w.assign(w.value + 1)
        return jnp.sum(before), jnp.sum(fn(x))

    assert host.run(step) == [4.0, 8.0]
    assert host.run(step) == [8.0, 12.0]


@pytest.mark.daily(3)
@pytest.mark.parametrize("make", WITH_GRADIENT)
def test_a_function_used_before_has_a_gradient(host, make):
    w = host.variable("rx")
    fn = make(w)

    def step(x):
        before = jnp.sum(fn(x))
        (gradient,) = rx.grad(lambda: jnp.sum(fn(x)), [w])()
        w.assign_sub(gradient)
        return before, jnp.sum(fn(x))

    assert host.run(step) == [4.0, -12.0]


@pytest.mark.daily(3)
@pytest.mark.parametrize("make", WITH_GRADIENT)
def test_a_function_may_be_differentiated_twice(host, make):
    w = host.variable("rx")
    fn = make(w)

    def step(x):
        (first,) = rx.grad(lambda: jnp.sum(fn(x)), [w])()
        w.assign_sub(first)
        loss, (second,) = rx.value_and_grad(lambda: jnp.sum(jnp.square(fn(x))), [w])()
        w.assign_sub(second)
        return loss, jnp.sum(fn(x))

    # w is 1, then 1 - 4, then -3 - (2 * 4 * -3).
    assert host.run(step) == [36.0, 84.0]


def test_an_inner_program_leaves_the_outer_ones_reads_noted(two):
    with two.scope():
        w, v = rx.Variable(np.float32(1)), rx.Variable(np.float32(2))
    of_w, of_v = scanned(w), scanned(v)

    @rx.function
    def step(x):
        before = of_w(x)
        two.run(lambda: of_v(jnp.ones(())))
        w.assign(5.0)
        return jnp.sum(before), jnp.sum(of_w(x))

    assert [float(result) for result in step(ROWS)] == [4.0, 20.0]


def test_a_checkpointed_keras_model_is_trained_after_a_look_at_it(two):
    def trained(wrapped):
        keras.utils.set_random_seed(0)
        with two.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
            optimizer = keras.optimizers.SGD(0.1)
            optimizer.build(model.trainable_variables)
        forward = wrapped(lambda x: model(x, training=True))

        def step(x):
            def loss():
                return rx.compute_average_loss(jnp.square(forward(x))[:, 0], global_batch_size=4)

            before = jnp.sum(forward(x))
            _, gradients = rx.value_and_grad(loss, model.trainable_variables)()
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return before, jnp.sum(forward(x))

        [batch] = two.distribute_dataset([np.ones((4, 3), "float32")])
        return [float(two.reduce("sum", result, axis=None)) for result in two.run(step, args=(batch,))]

    np.testing.assert_allclose(trained(jax.checkpoint), trained(lambda fn: fn), rtol=1e-6)


@pytest.mark.daily(1)
@pytest.mark.parametrize("make", [jitted, scanned])
def test_operation_by_operation_too(two, eagerly, make):
    host = Host(two)
    w = host.variable("rx")
    fn = make(w)

    def step(x):
        before = fn(x)
        w.assign(w.value + 1)
        return jnp.sum(before), jnp.sum(fn(x))

    assert host.run(step) == [4.0, 8.0]
    assert host.run(step) == [8.0, 12.0]


def test_assignments_of_what_no_inner_function_has_read_keep_jaxs_traces():
    traced = []
    inner = jax.jit(lambda x: (traced.append(1), x + 1)[1])
    w, other = rx.Variable(1.0), rx.Variable(1.0)
    fn = jitted(w)

    @rx.function
    def step(x):
        x = fn(x)
        for _ in range(3):
            x = inner(x)
            other.assign(jnp.sum(x))
        assert len(traced) == 1
        w.assign(2.0)
        return inner(fn(x))

    step(ROWS)
    assert len(traced) == 2


@pytest.mark.parametrize("make", [jitted, checkpointed, scanned])
def test_a_kept_trace_in_a_loss_outside_of_programs_says_what_to_do(make):
    w = rx.Variable(3.0)
    call = make(w)
    step = rx.grad(lambda: call(2.0), w)
    assert step() == 2.0
    w.assign(4.0)
    with pytest.raises(rx.errors.ProgramError, match=r"Call the step through rx\.function"):
        step()
    assert rx.function(step)() == 2.0
    w.assign(5.0)
    assert rx.function(rx.value_and_grad(lambda: call(2.0), w))()[0] == 10.0
