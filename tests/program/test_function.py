from __future__ import annotations

import traceback

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, TracedValueError

# Signatures.


@pytest.mark.parametrize(
    ("first", "second", "programs"),
    [
        ((1.0,), (2.0,), 1),
        ((1,), (1.0,), 2),
        ((True,), (True,), 1),
        ((True,), (False,), 2),
        ((jnp.ones(2),), (jnp.zeros(2),), 1),
        ((jnp.ones(2),), (jnp.ones(3),), 2),
        ((jnp.ones(2),), (jnp.ones(2, "int32"),), 2),
        ((np.ones(2),), (np.zeros(2),), 1),
        ((np.float32(1),), (np.float32(2),), 1),
        (({"a": 1.0},), ({"a": 2.0},), 1),
        (({"a": 1.0},), ({"b": 1.0},), 2),
        (([1.0],), ((1.0,),), 2),
        (("a",), ("a",), 1),
        (("a",), ("b",), 2),
        ((None,), (1.0,), 2),
        pytest.param((jax.nn.relu,), (jax.nn.relu,), 1, id="same function"),
        pytest.param((jax.nn.relu,), (jax.nn.gelu,), 2, id="other function"),
    ],
    ids=str,
)
def test_a_new_kind_of_arguments_makes_a_new_program(first, second, programs):
    f = rx.function(lambda x: 0)
    f(*first)
    f(*second)
    assert f.num_programs == programs


def test_another_setting_of_jax_makes_a_new_program_as_under_jit():
    f = rx.function(lambda x: jax.random.uniform(jax.random.key(0)) + x)
    before = f(1.0)
    with jax.default_prng_impl("rbg"):
        assert float(f(1.0)) == float(jax.random.uniform(jax.random.key(0)) + 1.0) != float(before)
    with jax.enable_x64(True):
        assert f(1.0).dtype == "float64"
    assert (float(f(1.0)), f.num_programs) == (float(before), 3)


def test_arrays_and_numbers_are_inputs_and_everything_else_is_fixed():
    @rx.function
    def f(x, sign="+", *, scale=1.0):
        return (x if sign == "+" else -x) * scale

    assert float(f(2.0)) == 2.0
    assert float(f(3.0, "-")) == -3.0
    assert float(f(3.0, "-", scale=2.0)) == -6.0
    assert float(f(4.0, sign="-", scale=3)) == -12.0
    assert f.num_programs == 4


def test_a_model_that_was_called_keeps_its_attributes_to_itself():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.ones((4, 3), np.float32)
    expected = model(x)
    compiled = rx.function(model)
    np.testing.assert_allclose(compiled(x), expected, rtol=1e-6)
    assert compiled.num_programs == 1
    assert not vars(compiled).keys() & {"built", "_called", "_layers"}


def test_each_strategy_has_its_own_program(mirrored, two):
    f = rx.function(lambda: rx.get_strategy().num_replicas_in_sync)
    assert f() == 1
    with two.scope():
        assert f() == 2
    with mirrored(3).scope():
        assert f() == 3
    assert f.num_programs == 3


def test_the_second_call_compiles_nothing(two, per_replica, compilations):
    with two.scope():
        w, seen = rx.Variable(1.0), rx.Variable(0, synchronization="on_read", aggregation="sum")
    free = rx.Variable(0.0)

    @rx.function
    def step(x):
        def replica_step(x):
            loss, (gradient,) = rx.value_and_grad(lambda: w * x, [w])()
            w.assign_sub(0.1 * gradient)
            seen.assign_add(1)
            return loss

        free.assign_add(1.0)
        return two.reduce("sum", two.run(replica_step, args=(x,)), axis=None)

    step(per_replica(two, 1.0, 2.0))
    x = per_replica(two, 3.0, 4.0)
    with compilations() as compiled:
        step(x)
        step(x)
    assert compiled == []
    assert step.num_programs == 1
    assert float(free.value) == 3.0
    assert int(seen.value) == 6


def test_a_first_call_is_one_compilation(compilations):
    w = rx.Variable(jnp.ones(3))
    f = rx.function(lambda x: w.assign_add(jnp.tanh(x) * 2 + w))
    x = jnp.ones(3)
    with compilations() as compiled:
        f(x)
    assert len(compiled) == 1


def test_assigning_from_outside_between_calls_compiles_nothing(two, compilations):
    with two.scope():
        w = rx.Variable([1.0, 2.0])
    f = rx.function(lambda: w.assign_add([1.0, 1.0]))
    f()
    w.assign([5.0, 6.0])
    w.assign(np.array([5.0, 6.0]))
    with compilations() as compiled:
        f()
    assert compiled == []
    np.testing.assert_array_equal(w.numpy(), [6.0, 7.0])


def test_random_keys_are_arguments_like_any_array(two):
    key = jax.random.key(3)
    f = rx.function(lambda key: jax.random.uniform(key))
    assert float(f(key)) == float(jax.random.uniform(key))
    assert float(two.run(jax.random.uniform, args=(key,))) == float(jax.random.uniform(key))
    assert float(f(jax.random.key(4))) != float(f(key))
    assert f.num_programs == 1


# Python while tracing.


def test_python_runs_once_for_each_kind_of_arguments_and_then_no_more():
    calls = []

    @rx.function
    def f(x):
        calls.append(x)
        return x

    for _ in range(3):
        f(1.0)
    assert len(calls) == 1
    f(jnp.ones(2))
    assert len(calls) == 2


def test_a_whole_training_step_is_traced_once(two, per_replica):
    """Compile time: the Python of a deep model is slow, and what it does is kept and evaluated after one run of it."""
    with two.scope():
        w = rx.Variable(3.0)
    calls = []

    def replica_step(x):
        calls.append("step")

        def loss():
            calls.append("loss")
            return jnp.sum(w * x)

        value, gradient = rx.value_and_grad(loss, w)()
        w.assign_sub(0.1 * gradient)
        return value

    @rx.function
    def step(x):
        calls.append("program")
        return two.reduce("sum", two.run(replica_step, args=(x,)))

    assert float(step(per_replica(two, 1.0, 2.0))) == 9.0
    assert calls == ["program", "step", "loss"]
    np.testing.assert_allclose(w.numpy(), 2.7, rtol=1e-6)


def test_a_layer_that_makes_its_weights_on_the_way_is_traced_once_more(two, per_replica):
    calls = []
    with two.scope():
        layer = keras.layers.Dense(1, kernel_initializer="ones")

    def replica_step(x):
        calls.append(1)
        return layer(x)

    ran = rx.function(lambda x: two.run(replica_step, args=(x,)))
    for _ in range(2):
        result = ran(per_replica(two, np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)))
    assert len(calls) == 2
    np.testing.assert_array_equal(result.values[0], np.full((2, 1), 3.0))


@pytest.mark.daily(2)
@pytest.mark.parametrize(("built", "optimizer_built", "runs"), [(True, True, 1), (True, False, 2), (False, False, 3)])
@pytest.mark.parametrize("compiled", [True, False], ids=["function", "run"])
def test_the_python_of_a_keras_step_runs_as_often_as_the_guide_says(two, built, optimizer_built, runs, compiled):
    rows = np.ones((4, 3), np.float32)
    with two.scope():
        model = keras.Sequential([keras.layers.Dropout(0.1), keras.layers.Dense(1)])
        optimizer, mean = keras.optimizers.Adam(), keras.metrics.Mean()
        if built:
            model.build((None, 3))
        if optimizer_built:
            optimizer.build(model.trainable_variables)
    calls = []

    def step(x):
        calls.append("step")

        def loss_fn():
            calls.append("loss")
            return rx.compute_average_loss(jnp.square(model(x, training=True))[:, 0])

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        mean.update_state(loss)
        return loss

    run = lambda batch: two.reduce("sum", two.run(step, args=(batch,)))  # noqa: E731
    run = rx.function(run) if compiled else run
    for batch in two.distribute_dataset([rows, rows, rows]):
        run(batch)
    assert calls == ["step", "loss"] * runs


def test_a_value_kept_from_tracing_is_reported_by_jax():
    kept = []

    @rx.function
    def f(x):
        kept.append(x * 2)
        return x

    f(1.0)
    with pytest.raises(jax.errors.UnexpectedTracerError):
        kept[0] + 1


def test_a_function_that_makes_a_variable_each_time_is_refused():
    a = rx.Variable(1.0)

    @rx.function
    def f():
        a.assign(2.0)
        return rx.Variable(1.0).assign_add(1.0)

    with pytest.raises(ProgramError, match="creates new variables every time it is called"):
        f()
    assert float(a.value) == 1.0


def test_a_variable_may_be_made_by_the_first_call(two):
    kept = []

    @rx.function
    def f():
        if not kept:
            kept.append(rx.Variable(1.0))
        return kept[0].assign_add(1.0)

    assert [float(f()) for _ in range(3)] == [2.0, 3.0, 4.0]


def test_an_error_shows_the_users_line_and_changes_nothing(two, per_replica):
    with two.scope():
        w = rx.Variable(1.0)

    def replica_step(x):
        w.assign_add(1.0)
        return jnp.ones(2) @ jnp.ones(3)  # the culprit

    @rx.function
    def step(x):
        return two.run(replica_step, args=(x,))

    with pytest.raises(TypeError) as caught:
        step(per_replica(two, 1.0, 2.0))
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "return jnp.ones(2) @ jnp.ones(3)  # the culprit" in lines
    assert float(w.value) == 1.0
    assert not rx.has_strategy()
    assert step.num_programs == 0


def choose(x):
    if x > 0:  # the culprit
        return x
    return -x


@pytest.mark.parametrize("call", [lambda two: rx.function(choose)(1.0), lambda two: two.run(choose, args=(1.0,))])
def test_python_control_flow_over_a_traced_value_is_told_what_to_do_instead(two, call):
    with pytest.raises(TracedValueError, match=r"jnp\.where.*run_eagerly") as caught:
        call(two)
    lines = [frame.line for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert "if x > 0:  # the culprit" in lines


# Variables.


def test_variables_keep_their_new_values():
    counter = rx.Variable(0)

    @rx.function
    def count(step):
        counter.assign_add(step)
        return counter.value * 10

    assert [int(count(n)) for n in (1, 2, 3)] == [10, 30, 60]
    assert int(counter.value) == 6


def test_a_later_read_sees_an_earlier_assignment():
    a, b = rx.Variable(1.0), rx.Variable(2.0)

    @rx.function
    def swap():
        old = a.value
        a.assign(b.value)
        b.assign(old)
        return a + 10 * b

    assert float(swap()) == 12.0
    assert (float(a.value), float(b.value)) == (2.0, 1.0)
    swap()
    assert (float(a.value), float(b.value)) == (1.0, 2.0)


@pytest.mark.parametrize("where", ["function", "run", "function in scope"])
def test_a_variable_may_be_made_in_the_first_call(two, where):
    made = []

    def count(x):
        if not made:
            made.append(rx.Variable(2.0))
        made[0].assign_add(x)
        return made[0].value

    if where == "run":
        call = lambda: two.run(count, args=(1.0,))  # noqa: E731
    else:
        compiled = rx.function(count)
        call = lambda: compiled(1.0)  # noqa: E731
    if where == "function":
        results = [float(call()), float(call())]
    else:
        with two.scope():
            results = [float(call()), float(call())]
        assert made[0].strategy is two
    assert results == [3.0, 4.0]
    assert len(made) == 1
    assert float(made[0].value) == 4.0


def test_the_initial_value_of_a_variable_cannot_depend_on_an_argument():
    made = []

    @rx.function
    def f(x):
        made.append(rx.Variable(x, name="late"))

    with pytest.raises(ProgramError, match="'late'"):
        f(1.0)
