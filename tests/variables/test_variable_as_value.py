"""A variable as a value: as an array, as a number, as an argument, and operation by operation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ProgramError, ReplicaDivergenceError
from tests.variables.test_variable import METHODS, components, variable_of


@pytest.fixture
def two(mirrored):
    return mirrored(2)


# Being an array.


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (lambda v: v + 1, [2.0, 5.0]),
        (lambda v: 1 - v, [0.0, -3.0]),
        (lambda v: v * v, [1.0, 16.0]),
        (lambda v: jnp.ones(2) * v, [1.0, 4.0]),
        (lambda v: np.ones(2) / v, [1.0, 0.25]),
        (lambda v: v**2, [1.0, 16.0]),
        (lambda v: -v, [-1.0, -4.0]),
        (lambda v: abs(-v), [1.0, 4.0]),
        (lambda v: v > 2, [False, True]),
        (lambda v: v == 4.0, [False, True]),
        (lambda v: v @ v, 17.0),
        (lambda v: v[1], 4.0),
        (lambda v: v[::-1], [4.0, 1.0]),
        (lambda v: np.sqrt(v), [1.0, 2.0]),
        (lambda v: np.asarray(v), [1.0, 4.0]),
        (lambda v: jnp.asarray(v), [1.0, 4.0]),
        (lambda v: jnp.sqrt(v.value), [1.0, 2.0]),
        (lambda v: jnp.stack([v, v])[1], [1.0, 4.0]),
        (len, 2),
    ],
)
def test_a_variable_computes_like_the_array_that_it_holds(expression, expected):
    np.testing.assert_array_equal(expression(rx.Variable([1.0, 4.0])), expected)


def test_a_scalar_variable_converts_to_python_numbers():
    v = rx.Variable(2.0)
    assert (float(v), int(v), bool(v), bool(rx.Variable(0.0))) == (2.0, 2, True, False)


def test_iterating_over_a_variable_ends():
    rows = iter(rx.Variable([1.0, 2.0]))
    assert [float(next(rows)) for _ in range(2)] == [1.0, 2.0]
    with pytest.raises(StopIteration):
        next(rows)


def test_variables_are_told_apart_by_identity_as_keys():
    a, b = rx.Variable(1.0), rx.Variable(1.0)
    assert {a: "a", b: "b"}[a] == "a"
    assert len({a, b}) == 2


def test_printing_a_variable_does_not_read_it(two):
    v = variable_of(two, synchronization="on_read")  # without aggregation it could not be read here
    assert repr(v) == "<Variable 'v' shape=() dtype=float32, replicas=2, components=[10., 10.]>"
    seen = []
    rx.function(lambda: seen.append(repr(v)))()
    assert set(seen) == {"<Variable 'v' shape=() dtype=float32, replicas=2>"}


def test_a_variable_shows_its_value():
    assert repr(rx.Variable([1, 2])) == "<Variable 'Variable' shape=(2,) dtype=int32, value=[1, 2]>"
    assert str(rx.Variable(True, name="flag")) == "<Variable 'flag' shape=() dtype=bool, value=True>"
    large = repr(rx.Variable(np.zeros((1000, 1000), np.float32)))
    assert "..." in large
    assert len(large) < 200
    assert "value" not in repr(rx.Variable(jax.random.key(0)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [lambda: rx.Variable(1.0), lambda: rx.dtensor.DVariable(1.0, layout=_replicated())])
def test_tensorflows_keywords_of_assignments_are_accepted(make, method):
    v = make()
    assert float(getattr(v, method)(1.0, use_locking=True, name="step")) == v.numpy()
    assert getattr(v, method)(1.0, read_value=False) is None
    assert getattr(v, method)(1.0, False, None, False) is None
    assert float(v.value) == {"assign": 1.0, "assign_add": 4.0, "assign_sub": -2.0}[method]


def _replicated():
    return rx.dtensor.Layout([], rx.dtensor.create_mesh([("x", 2)], devices=["cpu:0", "cpu:1"]))


def test_a_variable_knows_its_device(two):
    assert rx.Variable(1.0).device == "cpu:0"
    with rx.OneDeviceStrategy("cpu:3").scope():
        v = rx.Variable(1.0)
    assert v.device == "cpu:3"
    assert variable_of(two).device == "cpu:0"
    assert rx.OneDeviceStrategy(v.device).devices == rx.OneDeviceStrategy("cpu:3").devices


# Per-replica values that a replica function has captured: each replica takes its component, as in tf.distribute.


@pytest.mark.daily(2)
@pytest.mark.parametrize("how", ["run", "function", "eager"])
def test_a_captured_per_replica_value_can_be_assigned(two, per_replica, how):
    captured = per_replica(two, 1.0, 2.0)
    mean, own = variable_of(two, aggregation="mean"), variable_of(two, synchronization="on_read", aggregation="sum")

    def step():
        mean.assign_add(captured)
        own.assign(captured)

    rx.config.run_eagerly(how == "eager")
    try:
        rx.function(lambda: two.run(step))() if how == "function" else two.run(step)
    finally:
        rx.config.run_eagerly(False)
    assert float(mean.value) == 11.5
    assert components(two, own) == [1.0, 2.0]


def test_a_captured_value_that_differs_needs_an_aggregation(two, mirrored, per_replica):
    captured = per_replica(two, 1.0, 2.0)
    v = variable_of(two)
    with pytest.raises(ReplicaDivergenceError):
        two.run(lambda: v.assign(captured))
    three = variable_of(mirrored(3), aggregation="sum")
    with pytest.raises(rx.errors.ReplicaShapeError, match="on 3 replicas"):
        mirrored(3).run(lambda: three.assign(captured))


# Operation by operation.


@pytest.fixture
def eagerly():
    rx.config.run_eagerly(True)
    yield
    rx.config.run_eagerly(False)


@pytest.mark.daily(1)
@pytest.mark.parametrize("declaration", [{}, {"synchronization": "on_read", "aggregation": "sum"}], ids=str)
def test_run_eagerly_indexes_a_variables_value(two, eagerly, declaration):
    v = variable_of(two, [1.0, 2.0, 3.0], **declaration)

    def step():
        v.assign(v.value.at[1].add(5.0))
        return v.value[1], v[-1], v.value[:2], jnp.sum(v.value)

    second, last, first_two, total = two.run(step)
    assert [float(two.local_results(x)[0]) for x in (second, last, total)] == [7.0, 3.0, 11.0]
    np.testing.assert_array_equal(two.local_results(first_two)[1], [1.0, 7.0])


@pytest.mark.daily(1)
@pytest.mark.parametrize("first", [1.0, lambda: jnp.ones(())], ids=["number", "function"])
def test_run_eagerly_a_step_may_make_a_variable_once(two, eagerly, first):
    kept = []

    def step():
        if not kept:
            kept.append(rx.Variable(first))
        return kept[0].assign_add(1.0)

    two.run(step)
    two.run(step)
    assert float(kept[0].value) == 3.0
    assert kept[0].strategy is two
    assert len(kept[0]._value.sharding.device_set) == 2


def test_run_eagerly_the_first_value_is_no_replicas_own(two, eagerly, per_replica):
    with pytest.raises(ProgramError, match="initial value"):
        two.run(rx.Variable, args=(per_replica(two, 1.0, 2.0),))


# As numbers.


def test_a_variable_of_one_number_serves_as_one():
    count, rate = rx.Variable(2), rx.Variable(0.125)
    assert list(range(count)) == [0, 1]
    assert ["a", "b", "c"][count] == "c"
    assert f"{rate:.2f} {count:03d}" == "0.12 002"
    assert float(round(rate, 1)) == pytest.approx(0.1)
    assert f"{rate}" == repr(rate)
    assert (rx.Variable([[1, 2], [3, 4]]).size, rate.size) == (4, 1)
    with pytest.raises(TypeError):
        range(rate)


@pytest.mark.parametrize("is_eager", [False, True], ids=["compiled", "eager"])
def test_calling_a_value_is_explained_in_a_step(two, is_eager):
    v = variable_of(two)
    rx.config.run_eagerly(is_eager)
    try:
        for call in (lambda: two.run(lambda: v.value()), rx.function(lambda: two.run(lambda: v.value()))):
            with pytest.raises(TypeError, match="without parentheses") as caught:
                call()
            assert "not callable" in str(caught.value)
    finally:
        rx.config.run_eagerly(False)


# As arguments.


def test_another_variable_is_another_program(two):
    """TensorFlow traces once for variables of equal shape; then the function could not ask which one it was given."""
    special = rx.Variable(1.0)
    others = [rx.Variable(1.0) for _ in range(3)]

    @rx.function
    def step(v, change):
        return v.assign_add(10 * change if v is special else change)

    for v in [special, *others, special]:
        step(v, 1.0)
    assert [float(v.value) for v in [special, *others]] == [21.0, 2.0, 2.0, 2.0]
    assert step.num_programs == 4

    @rx.function
    def step_for_all(variables, change):
        for v in variables:
            v.assign_add(change)

    for _ in range(3):
        step_for_all(others, 1.0)
    assert step_for_all.num_programs == 1


@pytest.mark.parametrize("value", ["x", None, object()])
def test_what_is_no_number_is_refused_by_name(value):
    v = rx.Variable(1.0, name="v")
    for call in (v.assign, v.assign_add, lambda value: rx.Variable(value, name="v")):
        with pytest.raises(rx.errors.VariableError, match="'v' takes an array of numbers"):
            call(value)
    assert float(v) == 1.0


def test_so_is_an_unknown_dtype():
    with pytest.raises(rx.errors.VariableError, match="of dtype zz"):
        rx.Variable(1.0, dtype="zz")
