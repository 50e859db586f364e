from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import PartitionSpec

import replicax as rx
from replicax.contracts.reduce_op import ReduceOp
from replicax.errors import ArgumentError, ReduceError, ReplicaShapeError
from replicax.runtime import REPLICA_AXIS, replica_mesh
from replicax.values import ManualPerReplica, PerReplica, UnevenPerReplica, is_per_replica, normalize_axes

REDUCTIONS = {ReduceOp.SUM: np.sum, ReduceOp.MEAN: np.mean}


@st.composite
def stacks(draw, min_rank=0):
    shape = draw(st.lists(st.integers(1, 3), min_size=min_rank, max_size=3))
    seed = draw(st.integers(0, 99))
    return np.random.default_rng(seed).normal(size=(draw(st.integers(1, 4)), *shape)).astype("float32")


# One shape for all components.


@settings(max_examples=15)
@given(stack=stacks(), op=st.sampled_from(ReduceOp))
def test_reduce_combines_element_by_element(stack, op):
    np.testing.assert_allclose(PerReplica(jnp.asarray(stack)).reduce(op), REDUCTIONS[op](stack, axis=0), rtol=1e-5)


@settings(max_examples=15)
@given(stack=stacks(min_rank=1), op=st.sampled_from(ReduceOp), data=st.data())
def test_even_and_uneven_values_reduce_and_gather_like_the_concatenated_array(stack, op, data):
    axis = data.draw(st.integers(1 - stack.ndim, stack.ndim - 2))
    joined = np.concatenate(list(stack), axis=axis)
    for value in (PerReplica(jnp.asarray(stack)), UnevenPerReplica(list(stack))):
        reduced = value.reduce_axis(op, axis)
        np.testing.assert_allclose(reduced, REDUCTIONS[op](joined, axis=axis), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(value.gather(axis), joined)


@settings(max_examples=12)
@given(sizes=st.lists(st.integers(0, 4), min_size=2, max_size=4), op=st.sampled_from(ReduceOp))
def test_components_of_any_number_of_rows_reduce_like_all_rows_together(sizes, op):
    if op is ReduceOp.MEAN and sum(sizes) == 0:
        return
    rows = np.arange(sum(sizes) * 2, dtype="float32").reshape(-1, 2)
    value = UnevenPerReplica(np.split(rows, np.cumsum(sizes)[:-1]))
    np.testing.assert_allclose(value.reduce_axis(op, 0), REDUCTIONS[op](rows, axis=0), rtol=1e-6)
    np.testing.assert_array_equal(value.gather(0), rows)


def test_the_mean_over_uneven_components_is_not_the_mean_of_their_means():
    assert UnevenPerReplica([jnp.array([4.0, 5.0]), jnp.array([6.0])]).reduce_axis(ReduceOp.MEAN, 0) == 5.0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_the_mean_over_uneven_components_is_that_of_numpy_in_narrow_dtypes_too(dtype):
    rows = np.full(1001, 100)
    mean = UnevenPerReplica([jnp.asarray(rows[:1000], dtype), jnp.asarray(rows[1000:], dtype)]).reduce_axis(
        ReduceOp.MEAN, 0
    )
    assert (float(mean), mean.dtype) == (100.0, jnp.mean(jnp.ones(1, dtype)).dtype)


def test_an_empty_component_adds_neither_to_the_sum_nor_to_the_count():
    value = UnevenPerReplica([jnp.array([4.0, 8.0]), jnp.zeros(0)])
    assert value.reduce_axis(ReduceOp.MEAN, 0) == 6.0


@pytest.mark.parametrize(
    "make", [lambda rows: PerReplica(jnp.asarray(rows)), lambda rows: UnevenPerReplica(list(rows))]
)
def test_several_axes_are_reduced_together(make):
    stack = np.arange(24, dtype="float32").reshape(2, 3, 4)
    value = make(stack)
    assert value.reduce_axis(ReduceOp.SUM, (0, 1)) == stack.sum()
    assert value.reduce_axis(ReduceOp.MEAN, (0, -1)) == stack.mean()


@pytest.mark.parametrize(
    ("components", "mean"), [([[1, 0], [1, 1]], [1.0, 0.5]), ([[True, False], [True, True]], [1.0, 0.5])]
)
def test_the_mean_of_integers_is_a_true_division(components, mean):
    result = PerReplica(jnp.asarray(components)).reduce(ReduceOp.MEAN)
    assert jnp.issubdtype(result.dtype, jnp.floating)
    np.testing.assert_array_equal(result, mean)


@pytest.mark.parametrize("op", ReduceOp)
def test_nan_and_infinity_pass_through(op):
    value = PerReplica(jnp.array([[1.0, jnp.inf, jnp.nan], [2.0, 1.0, 1.0]]))
    result = value.reduce(op)
    assert np.isfinite(result[0])
    assert np.isinf(result[1])
    assert np.isnan(result[2])


# Different shapes.


def test_components_of_different_shapes_have_no_elementwise_combination():
    with pytest.raises(ReplicaShapeError, match=r"\(2,\) float32, \(1,\) float32\].*axis"):
        UnevenPerReplica([jnp.ones(2), jnp.ones(1)]).reduce(ReduceOp.MEAN)


@pytest.mark.parametrize("shapes", [[(2, 3), (2, 4)], [(2, 3), (3,)]])
def test_gather_needs_equal_sizes_off_the_axis(shapes):
    with pytest.raises(ReplicaShapeError):
        UnevenPerReplica([jnp.ones(shape) for shape in shapes]).gather(0)


# Axes.


@pytest.mark.parametrize("axis", [2, -3, "0", 0.0, True, None, (0, 5), (0, 0), (0, -2), ("a",)])
def test_a_bad_axis_is_a_reduce_error(axis):
    with pytest.raises(ReduceError, match="axis"):
        normalize_axes(axis, (4, 5))


def test_a_scalar_has_no_axis():
    with pytest.raises(ReduceError):
        PerReplica(jnp.ones(2)).reduce_axis(ReduceOp.SUM, 0)
    with pytest.raises(ReduceError):
        PerReplica(jnp.ones(2)).gather(0)


@pytest.mark.parametrize(("axis", "normal"), [(0, (0,)), (-1, (1,)), ((0, -1), (0, 1)), ([1], (1,))])
def test_axes_count_from_either_end(axis, normal):
    assert normalize_axes(axis, (4, 5)) == normal


# What the values are.


def test_mirrored_describes_arrays_that_several_devices_hold_in_full(mirrored, per_replica):
    strategy = mirrored(2)
    assert isinstance(strategy.replicate(1.0), rx.Mirrored)
    assert not isinstance(jnp.ones(2), rx.Mirrored)
    assert not isinstance(1.0, rx.Mirrored)
    assert not isinstance(per_replica(strategy, 1.0, 2.0), rx.Mirrored)
    assert not isinstance(per_replica(strategy, 1.0, 2.0).stacked, rx.Mirrored)
    with pytest.raises(TypeError, match="replicate"):
        rx.Mirrored()


def test_components_live_on_their_replicas_devices_in_order(mirrored, per_replica):
    strategy = mirrored(3)
    value = per_replica(strategy, [0.0], [1.0], [2.0])
    assert isinstance(value, rx.PerReplica)
    assert (value.num_replicas, value.component_shape) == (3, (1,))
    assert [float(component[0]) for component in value.values] == [0.0, 1.0, 2.0]
    assert [component.devices() for component in value.values] == [{device} for device in strategy.devices]


def test_a_per_replica_value_is_a_pytree_of_its_stack(mirrored, per_replica):
    value = per_replica(mirrored(2), 1.0, 2.0)
    doubled = jax.tree.map(lambda stacked: 2 * stacked, {"x": value})["x"]
    assert isinstance(doubled, rx.PerReplica)
    assert [float(component) for component in doubled.values] == [2.0, 4.0]
    assert [float(component) for component in value.map(jnp.negative).values] == [-1.0, -2.0]


@pytest.mark.parametrize("components", [(1.0, 2.0), (1.0, [2.0]), ("a", "b")], ids=str)
def test_printing_a_value_shows_each_component(mirrored, per_replica, components):
    lines = repr(per_replica(mirrored(2), *components)).splitlines()
    assert lines[0] == "PerReplica({"
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == ["0", "1"]


def test_all_three_forms_are_per_replica_values():
    forms = [PerReplica(jnp.ones(2)), UnevenPerReplica([1, 2]), ManualPerReplica(jnp.ones(()), 2)]
    assert all(is_per_replica(form) and isinstance(form, rx.DistributedValues) for form in forms)
    assert not is_per_replica(jnp.ones(2))


def test_the_view_from_inside_a_replica_reduces_and_gathers_with_collectives():
    rows = jnp.array([[1.0, 2.0], [3.0, 6.0]])

    def fn(row):
        value = ManualPerReplica(row[0], 2)
        gathered = value.gather(0)
        return (value.reduce(ReduceOp.SUM), value.reduce_axis(ReduceOp.MEAN, 0)), gathered

    mesh = replica_mesh(jax.devices()[:2])
    out_specs = (PartitionSpec(), PartitionSpec(REPLICA_AXIS))
    mapped = jax.shard_map(fn, mesh=mesh, in_specs=PartitionSpec(REPLICA_AXIS), out_specs=out_specs)
    (total, mean), gathered = jax.jit(mapped)(rows)
    np.testing.assert_array_equal(total, [4.0, 8.0])
    assert mean == 3.0
    np.testing.assert_array_equal(gathered[:4], [1.0, 2.0, 3.0, 6.0])


@pytest.mark.parametrize("convert", [bool, float, int, np.asarray, jnp.asarray, np.sum])
@pytest.mark.parametrize("make", [lambda: PerReplica(jnp.ones(2)), lambda: UnevenPerReplica([1, 2.0])])
def test_a_per_replica_value_is_no_array_number_or_condition(convert, make):
    with pytest.raises(ArgumentError, match=r"(?s)strategy\.reduce.*strategy\.local_results"):
        convert(make())


@pytest.mark.parametrize("op", list(ReduceOp))
def test_what_an_axis_leaves_of_components_must_have_one_shape(op):
    # The first would broadcast.
    uneven = UnevenPerReplica([np.ones((1, 2)), np.ones((3, 2)), np.ones((3, 2))])
    with pytest.raises(ReplicaShapeError, match=r"\(1, 2\).*axis=\(0, 1\)"):
        uneven.reduce_axis(op, 1)
    assert uneven.reduce_axis(op, 0).shape == (2,)


def test_components_that_are_no_numbers_cannot_be_combined():
    for components in ("ab", [np.array(["a"]), np.array(["b", "c"])]):
        for combine in (lambda u: u.reduce_axis(ReduceOp.SUM, 0), lambda u: u.gather(0)):
            with pytest.raises(ReplicaShapeError, match="Only arrays"):
                combine(UnevenPerReplica(components))


def test_a_per_replica_value_on_the_host_has_its_components():
    value = jax.device_get(PerReplica(jnp.asarray([[1.0], [2.0]])))
    assert [component.tolist() for component in value.values] == [[1.0], [2.0]]
    assert repr(value) == "PerReplica({\n  0: [1.],\n  1: [2.],\n})"


def test_waiting_for_a_per_replica_value_says_how():
    value = PerReplica(jnp.zeros(2))
    with pytest.raises(AttributeError, match=r"no 'block_until_ready': it has one component"):
        value.block_until_ready()


def test_a_value_whose_leaves_are_no_arrays_can_be_printed():
    value = rx.PerReplica(np.zeros((2, 3), np.float32))
    assert "float32" in repr(jax.tree.map(lambda leaf: leaf.dtype, value))
    assert "(2, 3)" in repr(jax.tree.map(np.shape, value))
    assert "None" in repr(jax.tree.map(lambda leaf: None, value))
