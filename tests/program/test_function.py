from __future__ import annotations

import dataclasses
import gc
import threading
import traceback
import weakref

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ProgramError, TracedValueError

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


# Wrapping.


def test_a_function_keeps_its_name_and_its_docstring():
    @rx.function
    def step(x):
        """Makes a step."""
        return x

    assert (step.__name__, step.__doc__) == ("step", "Makes a step.")
    assert step.python_function(3) == 3


def test_only_callables_are_wrapped():
    with pytest.raises(ArgumentError, match="3"):
        rx.function(3)


class Counter:
    def __init__(self, start):
        self.total = rx.Variable(start)

    @rx.function
    def add(self, x):
        return self.total.assign_add(x)


def test_a_method_has_programs_of_its_own_for_each_instance():
    a, b = Counter(1.0), Counter(10.0)
    assert [float(a.add(1.0)), float(b.add(1.0)), float(a.add(1.0))] == [2.0, 11.0, 3.0]
    assert a.add.num_programs == b.add.num_programs == 1
    assert isinstance(Counter.add, type(rx.function(lambda: 0)))


def test_a_methods_programs_do_not_keep_its_instance_alive():
    counter = Counter(1.0)
    counter.add(1.0)
    reference = weakref.ref(counter)
    del counter
    gc.collect()
    assert reference() is None


@dataclasses.dataclass
class Scaler:
    """Equal to other scalers by value, and therefore without a hash."""

    factor: float

    @rx.function
    def scale(self, x):
        return self.factor * x


@dataclasses.dataclass(frozen=True)
class Point:
    """Equal to other points with the same x."""

    x: int
    tag: str = dataclasses.field(compare=False)

    @rx.function
    def say(self):
        return self.tag


def test_a_method_of_a_dataclass_can_be_a_function():
    assert float(Scaler(2.0).scale(3.0)) == 6.0


def test_equal_instances_are_still_two_instances():
    a, b = Point(1, "a"), Point(1, "b")
    assert (a.say(), b.say()) == ("a", "b")


def test_functions_nest_into_one_program():
    inner = rx.function(lambda x: x + 1)
    outer = rx.function(lambda x: inner(inner(x)) * 2)
    assert float(outer(1.0)) == 6.0
    assert (outer.num_programs, inner.num_programs) == (1, 0)


def test_donated_arguments_are_used_up_and_others_are_not():
    f = rx.function(lambda a, b, c: (a + 1, b + 1, c["x"] + 1), donate_argnums=(0, 2))
    a, b, c = jnp.ones(3), jnp.ones(3), {"x": jnp.ones(3)}
    results = f(a, b, c)
    assert (a.is_deleted(), b.is_deleted(), c["x"].is_deleted()) == (True, False, True)
    assert all(float(x[0]) == 2.0 for x in results)


def test_donated_arguments_of_a_method_count_from_self():
    class Model:
        @rx.function(donate_argnums=(1,))
        def step(self, state, batch):
            return state + batch

    state, batch = jnp.ones(3), jnp.ones(3)
    Model().step(state, batch)
    assert (state.is_deleted(), batch.is_deleted()) == (True, False)


def test_jax_transforms_a_function_that_assigns_nothing():
    w = rx.Variable(3.0)
    f = rx.function(lambda x: w * x * x)
    assert float(jax.grad(f)(2.0)) == 12.0
    np.testing.assert_array_equal(jax.vmap(f)(jnp.arange(3.0)), [0.0, 3.0, 12.0])


def test_inside_jax_jit_a_function_must_not_assign():
    w = rx.Variable(3.0)
    f = rx.function(lambda x: w.assign_add(x))
    with pytest.raises(ProgramError, match=r"rx\.function"):
        jax.jit(f)(1.0)
    assert float(w.value) == 3.0
    f(1.0)
    assert float(w.value) == 4.0


def test_threads_that_call_at_once_trace_once():
    traced = []
    f = rx.function(lambda x: (traced.append(x), jnp.sin(x) + 1)[1])
    results, barrier = [], threading.Barrier(4)

    def call():
        barrier.wait()
        results.append(float(f(0.0)))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1.0] * 4
    assert f.num_programs == 1
    assert len(traced) == 1


def test_values_that_are_no_arrays_come_back_as_they_are(two, per_replica):
    marker = object()

    @rx.function
    def f(x):
        return {"array": x.map(lambda rows: rows + 1), "object": marker, "none": None, "text": "a", "number": 5}

    result = f(per_replica(two, 1.0, 2.0))
    assert [float(component) for component in result.pop("array").values] == [2.0, 3.0]
    assert result == {"object": marker, "none": None, "text": "a", "number": 5}


# Eager execution.


def test_run_eagerly_runs_the_python_at_every_call_over_real_values(eagerly, capsys):
    w = rx.Variable(1.0)

    @rx.function
    def f(x):
        if w.value + x > 3:
            print("large:", w.value + x)
        return w.assign_add(x)

    assert [float(f(1.0)), float(f(1.0)), float(f(1.0))] == [2.0, 3.0, 4.0]
    assert capsys.readouterr().out == "large: 4.0\n"
    assert f.num_programs == 0


def test_run_eagerly_prints_each_replicas_part(eagerly, two, per_replica, capsys):
    def step(x):
        print(x)
        return 2 * x

    result = two.run(step, args=(per_replica(two, 1.25, 2.5),))
    printed = capsys.readouterr().out
    assert "1.25" in printed
    assert "2.5" in printed
    assert [float(x) for x in result.values] == [2.5, 5.0]


def test_run_eagerly_allows_python_control_flow_over_values_that_are_equal_on_all_replicas(eagerly, two):
    with two.scope():
        w = rx.Variable(3.0)

    def step(x):
        return x if w.value > 2 else -x

    assert float(two.run(step, args=(1.0,))) == 1.0
    w.assign(1.0)
    assert float(two.run(step, args=(1.0,))) == -1.0


# Keywords of tf.function.

HARMLESS_KEYWORDS = {
    "jit_compile": [None, True],
    "experimental_compile": [None, True],
    "reduce_retracing": [None, False],
    "experimental_relax_shapes": [None, False],
    "autograph": [None, False],
    "experimental_autograph_options": [None],
    "experimental_implements": [None],
    "experimental_attributes": [None],
    "experimental_follow_type_hints": [None, False],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in HARMLESS_KEYWORDS.items() for value in values]
)
def test_keywords_of_tf_function_that_mean_what_happens_anyway_are_accepted(name, value):
    assert float(rx.function(lambda x: x + 1, **{name: value})(1.0)) == 2.0

    @rx.function(**{name: value})
    def f(x):
        return x + 1

    assert float(f(1.0)) == 2.0


@pytest.mark.parametrize(
    ("name", "value", "way_out"),
    [
        ("jit_compile", False, "run_eagerly"),
        ("jit_compile", 1, "run_eagerly"),
        ("experimental_compile", False, "run_eagerly"),
        ("reduce_retracing", True, "remainder='drop'"),
        ("experimental_relax_shapes", True, "remainder='drop'"),
        ("autograph", True, r"jax\.lax\.cond"),
        ("experimental_autograph_options", object(), r"jax\.lax\.cond"),
        ("experimental_implements", "name", "no TensorFlow graph"),
        ("experimental_attributes", {}, "no TensorFlow graph"),
        ("experimental_follow_type_hints", True, "annotations"),
        ("jitted", True, "neither has tf.function"),
    ],
)
def test_others_are_refused_with_the_reason(name, value, way_out):
    with pytest.raises(ArgumentError, match=f"{name}.*{way_out}"):
        rx.function(**{name: value})


@pytest.mark.parametrize("positions", ["x", 0.5, [None]])
def test_what_is_no_position_cannot_be_donated(positions):
    with pytest.raises(rx.errors.ArgumentError, match="donate_argnums are positions"):
        rx.function(lambda x: x, donate_argnums=positions)


def test_one_position_may_be_given_by_itself():
    assert float(rx.function(lambda x: x + 1, donate_argnums=0)(jnp.float32(1.0))) == 2.0
