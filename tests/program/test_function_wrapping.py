"""What `rx.function` wraps, its keywords, and eager execution."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ProgramError

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


def test_threads_that_call_a_function_for_the_first_time_build_its_variables_once():
    class Counted:
        total = None

        def __call__(self, x):
            if self.total is None:
                self.total = rx.Variable(0)
                self.total.assign(10)
            return self.total.assign_add(x)

    counted, totals, errors = Counted(), list[int](), list[Exception]()
    add = rx.function(lambda x: counted(x))
    together = threading.Barrier(4)

    def call():
        together.wait(60)
        try:
            totals.append(int(add(jnp.int32(1))))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (sorted(totals), errors) == ([11, 12, 13, 14], [])


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


def test_positions_of_donated_arguments_count_from_0():
    with pytest.raises(rx.errors.ArgumentError, match="positions of arguments from 0"):
        rx.function(lambda x: x, donate_argnums=-1)


def test_a_method_of_objects_without_weak_references_is_refused_in_our_words():
    class Slotted:
        __slots__ = ("weight",)

        @rx.function
        def step(self, x):
            return x

    with pytest.raises(rx.errors.ArgumentError, match="Add '__weakref__' to its __slots__"):
        Slotted().step(jnp.ones(2))
