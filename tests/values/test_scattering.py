"""Scatter methods: NumPy's loops are the reference, and TensorFlow's table of what replicas do together."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ReduceError, ReplicaDivergenceError, VariableError

OPS = {
    "add": lambda old, new: old + new,
    "sub": lambda old, new: old - new,
    "mul": lambda old, new: old * new,
    "div": lambda old, new: np.trunc(old / new).astype(old.dtype) if old.dtype.kind == "i" else old / new,
    "max": np.maximum,
    "min": np.minimum,
    "update": lambda old, new: new,
}


@pytest.fixture
def two(mirrored):
    return mirrored(2)


def one_after_the_other(op, value, indices, updates):
    found = np.array(value)
    for index, update in zip(indices, updates, strict=True):
        found[index] = OPS[op](found[index], update)
    return found


def slices_as_ours(indices, updates):
    return (rx.IndexedSlices(values=updates, indices=indices),)


def slices_as_theirs(indices, updates):
    return types.SimpleNamespace(values=updates, indices=indices, dense_shape=None), False


def two_arguments(indices, updates):
    return indices, updates


@pytest.mark.parametrize("form", [slices_as_ours, slices_as_theirs, two_arguments])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("op", OPS)
def test_rows_change_one_after_the_other(op, dtype, form):
    value = (np.arange(8).reshape(4, 2) * 7 - 20).astype(dtype)
    indices = np.array([2, 0, 3] if op == "update" else [2, 0, 2, 3])
    updates = (np.arange(2 * len(indices)).reshape(-1, 2) + 2).astype(dtype)
    v = rx.Variable(value)
    new = getattr(v, f"scatter_{op}")(*form(indices, updates))
    expected = one_after_the_other(op, value, indices, updates)
    np.testing.assert_allclose(v.numpy(), expected, rtol=1e-6)
    np.testing.assert_array_equal(new, v.numpy())
    assert v.dtype == dtype


def test_updates_may_be_one_number_and_indices_of_any_shape():
    v = rx.Variable(np.zeros((4, 2), np.float32))
    v.scatter_add([[0, 1], [1, 3]], 2.0)
    np.testing.assert_array_equal(v.numpy()[:, 0], [2, 4, 0, 2])
    v.scatter_update(3, [5.0, 6.0])
    np.testing.assert_array_equal(v.numpy()[3], [5, 6])


@pytest.mark.parametrize("op", ["add", "sub", "update", "max", "min"])
def test_entries_are_named_by_several_indices(op):
    value, indices = np.arange(24.0, dtype=np.float32).reshape(4, 3, 2), np.array([[0, 2], [3, 1]])
    v = rx.Variable(value)
    getattr(v, f"scatter_nd_{op}")(indices, np.full((2, 2), 4, np.float32))
    expected = one_after_the_other(op, value, [(0, 2), (3, 1)], [4, 4])
    np.testing.assert_array_equal(v.numpy(), expected)
    v.scatter_nd_update([[0, 0, 1], [3, 2, 0]], [-1.0, -2.0])
    assert (v.numpy()[0, 0, 1], v.numpy()[3, 2, 0]) == (-1, -2)


def test_rows_of_each_part_of_a_batch():
    value, indices = np.zeros((2, 5, 3), np.float32), np.array([[0, 4], [2, 1]])
    updates = np.arange(12, dtype=np.float32).reshape(2, 2, 3) + 1
    v = rx.Variable(value)
    v.batch_scatter_update(rx.IndexedSlices(updates, indices))
    for b in range(2):
        for i in range(2):
            value[b, indices[b, i]] = updates[b, i]
    np.testing.assert_array_equal(v.numpy(), value)
    with pytest.raises(VariableError, match="before their last dimension"):
        v.batch_scatter_update(np.zeros((3, 2), int), 0.0)


def test_updates_may_be_bools():
    v = rx.Variable([True, False, True])
    v.scatter_update([1], True)
    v.scatter_update([0], updates=False)
    v.scatter_update([2], [False])
    assert v.numpy().tolist() == [False, True, False]
    with pytest.raises(ArgumentError, match="indices and updates"):
        v.scatter_update([1], False)  # that is `use_locking`


# In replicas: TensorFlow's table. Row 0 is 2, each replica brings 5.


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("aggregation", "op", "stored"),
    [
        ("sum", "mul", 50.0), ("mean", "mul", 12.5), ("only_first_replica", "mul", 10.0), ("none", "mul", 10.0),
        ("sum", "add", 12.0), ("mean", "add", 7.0), ("only_first_replica", "add", 7.0), ("none", "add", 7.0),
        ("sum", "sub", -8.0), ("mean", "sub", -3.0), ("only_first_replica", "sub", -3.0), ("none", "sub", -3.0),
        ("sum", "div", 0.08), ("mean", "div", 0.32), ("only_first_replica", "div", 0.4), ("none", "div", 0.4),
        ("only_first_replica", "max", 5.0), ("none", "max", 5.0), ("only_first_replica", "min", 2.0),
        ("none", "min", 2.0), ("only_first_replica", "update", 5.0), ("none", "update", 5.0),
    ],
)  # fmt: skip
def test_equal_slices_count_once_for_each_replica(two, aggregation, op, stored):
    with two.scope():
        v = rx.Variable([2.0, 1.0], aggregation=aggregation)
    two.run(lambda: getattr(v, f"scatter_{op}")(rx.IndexedSlices([5.0], [0])))
    np.testing.assert_allclose(v.numpy(), [stored, 1.0], rtol=1e-6)


@pytest.mark.daily(3)
@pytest.mark.parametrize(("aggregation", "stored"), [("sum", 50.0), ("mean", 12.5), ("none", 10.0)])
@pytest.mark.parametrize("is_eager", [False, True], ids=["function", "eager"])
def test_in_a_function_and_op_by_op_it_is_the_same(two, aggregation, stored, is_eager):
    with two.scope():
        v = rx.Variable([2.0, 1.0], aggregation=aggregation)
    rx.config.run_eagerly(is_eager)
    try:
        rx.function(lambda: two.run(lambda: v.scatter_mul([0], [5.0])))()
    finally:
        rx.config.run_eagerly(False)
    np.testing.assert_allclose(v.numpy(), [stored, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("aggregation", "stored"), [("sum", [3, 2, 2]), ("mean", [2, 1.5, 1.5]), ("only_first_replica", [2, 1, 2])]
)
@pytest.mark.parametrize("kind", [rx.MirroredStrategy, rx.CentralStorageStrategy])
def test_each_replica_may_change_rows_of_its_own(per_replica, kind, aggregation, stored):
    strategy = kind(["cpu:0", "cpu:1"])
    with strategy.scope():
        v = rx.Variable([1.0, 1.0, 1.0], aggregation=aggregation)
    rows = per_replica(strategy, [0, 2], [0, 1])
    amounts = per_replica(strategy, [1.0, 1.0], [1.0, 1.0])
    strategy.run(lambda rows, amounts: v.scatter_add(rx.IndexedSlices(amounts, rows)), args=(rows, amounts))
    np.testing.assert_allclose(v.numpy(), stored)


def test_slices_that_differ_need_an_aggregation(two, per_replica):
    with two.scope():
        v = rx.Variable([1.0, 1.0])
    rows = per_replica(two, [0], [1])
    with pytest.raises(ReplicaDivergenceError):
        two.run(lambda rows: v.scatter_add(rows, 1.0), args=(rows,))
    np.testing.assert_array_equal(v.numpy(), [1, 1])


@pytest.mark.parametrize("aggregation", ["sum", "mean"])
@pytest.mark.parametrize("op", ["max", "min", "update"])
def test_the_order_of_replicas_must_not_count(two, aggregation, op):
    with two.scope():
        v = rx.Variable([1.0, 1.0], aggregation=aggregation)
    with pytest.raises(VariableError, match="only_first_replica"):
        two.run(lambda: getattr(v, f"scatter_{op}")([0], [2.0]))
    getattr(v, f"scatter_{op}")([0], [2.0])  # outside of replicas it is clear


def test_components_are_no_rows(two):
    with two.scope():
        v = rx.Variable([1.0], synchronization="on_read", aggregation="sum")
    for call in (lambda: v.scatter_add([0], 1.0), lambda: two.run(lambda: v.scatter_add([0], 1.0))):
        with pytest.raises(VariableError, match="on_read"):
            call()


def test_a_cross_replica_function_changes_the_one_value(two, per_replica):
    with two.scope():
        v = rx.Variable([1.0, 1.0], aggregation="sum")
    two.update(v, lambda v: v.scatter_add([1], [2.0]))
    np.testing.assert_array_equal(v.numpy(), [1, 3])

    def step(x):
        total = rx.get_replica_context().all_reduce("sum", x)
        rx.get_replica_context().merge_call(lambda strategy, total: v.scatter_add([0], total), args=(total,))

    two.run(step, args=(per_replica(two, 1.0, 2.0),))
    np.testing.assert_array_equal(v.numpy(), [4, 3])


def test_slices_pass_through_run_as_other_arguments_do(two, per_replica):
    with two.scope():
        v = rx.Variable([0.0, 0.0], aggregation="sum")
    slices = rx.IndexedSlices(per_replica(two, [1.0], [2.0]), per_replica(two, [0], [1]))
    two.run(v.scatter_add, args=(slices,))
    np.testing.assert_array_equal(v.numpy(), [1, 2])
    two.run(lambda: v.scatter_sub(slices))  # captured: each replica has its own component
    np.testing.assert_array_equal(v.numpy(), [0, 0])


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (([0],), ArgumentError),
        ((rx.IndexedSlices([[1.0, 1.0]], [0]), [1.0]), ArgumentError),
        (([4], 1.0), VariableError),
        (([-1], 1.0), VariableError),
        (([0.5], 1.0), VariableError),
        (([True], 1.0), VariableError),
        (([0], [1.0, 2.0, 3.0]), VariableError),
        (([0, 1], [[1.0, 2.0]]), VariableError),
    ],
    ids=str,
)
def test_what_names_no_rows_or_does_not_fit_is_refused(arguments, error):
    v = rx.Variable(np.zeros((4, 2), np.float32))
    with pytest.raises(error):
        v.scatter_add(*arguments)
    with pytest.raises(VariableError, match="shape"):
        rx.Variable(1.0).scatter_add([0], [1.0])
    np.testing.assert_array_equal(v.numpy(), 0)


def test_in_a_step_rows_out_of_range_change_nothing(two):
    v = rx.Variable(np.zeros(3, np.float32))
    rx.function(v.scatter_add)(np.array([-1, 1, 3]), np.ones(3, np.float32))
    np.testing.assert_array_equal(v.numpy(), [0, 1, 0])


def test_per_replica_slices_need_a_replica(two, per_replica):
    with two.scope():
        v = rx.Variable([0.0])
    rows = per_replica(two, [0], [0])
    with pytest.raises(VariableError, match="outside of a replica"):
        v.scatter_add(rows, 1.0)
    uneven = per_replica(two, [0], [0, 0])
    with pytest.raises(ArgumentError, match="per-replica value"):
        two.run(lambda: v.scatter_add(uneven, 1.0))


def test_gradients_with_respect_to_a_variable_see_a_change_of_rows():
    v = rx.Variable([1.0, 2.0])

    @rx.function
    def step():
        v.scatter_mul([0], [3.0])
        return rx.grad(lambda: jnp.sum(v.value**2), [v])()

    (gradient,) = step()
    np.testing.assert_allclose(gradient, [6.0, 4.0])
    assert isinstance(gradient, jax.Array)


# IndexedSlices that are reduced: all of them, one after the other.


@pytest.mark.parametrize(
    ("op", "values"), [("sum", [[1.0], [2.0], [3.0], [4.0]]), ("mean", [[0.5], [1.0], [1.5], [2.0]])]
)
def test_slices_of_all_replicas(two, per_replica, op, values):
    rows, changes = per_replica(two, [0, 1], [1, 2]), per_replica(two, [[1.0], [2.0]], [[3.0], [4.0]])
    with two.scope():
        v = rx.Variable(np.zeros((3, 1), np.float32))

    def step(rows, changes):
        slices, total = rx.get_replica_context().all_reduce(op, (rx.IndexedSlices(changes, rows), jnp.sum(changes)))
        v.scatter_add(slices)
        return slices, total

    slices, total = two.run(step, args=(rows, changes))
    assert isinstance(slices, rx.IndexedSlices)
    np.testing.assert_array_equal(slices.indices, [0, 1, 1, 2])
    np.testing.assert_array_equal(slices.values, values)
    assert float(total) == {"sum": 10.0, "mean": 5.0}[op]
    expected = np.zeros((3, 1), np.float32)
    np.add.at(expected, [0, 1, 1, 2], values)
    np.testing.assert_array_equal(v.numpy(), expected)


def test_one_replicas_slices_are_all():
    strategy = rx.OneDeviceStrategy("cpu:0")
    slices = strategy.run(lambda: rx.get_replica_context().all_reduce("sum", rx.IndexedSlices([1.0], [0])))
    np.testing.assert_array_equal(slices.values, [1.0])


def test_slices_are_not_gathered_or_reduced_outside(two, per_replica):
    slices = rx.IndexedSlices(per_replica(two, [1.0], [2.0]), per_replica(two, [0], [0]))
    for call in (lambda: two.reduce("sum", {"a": slices}, axis=None), lambda: two.gather(slices, axis=0)):
        with pytest.raises(ReduceError, match="all_reduce"):
            call()
    with pytest.raises(ReduceError, match="scatter_add"):
        two.run(lambda slices: rx.get_replica_context().all_gather(slices, axis=0), args=(slices,))
