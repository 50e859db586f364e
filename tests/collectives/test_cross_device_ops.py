"""The contract: what holds for every algorithm."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.collectives import CommunicationOptions, NcclAllReduce
from replicax.compat.jax import vary, varying_axes
from replicax.errors import ArgumentError, ContextError, ReduceError
from replicax.runtime import REPLICA_AXIS

MIXED = [
    ((), "float32"),
    ((0, 3), "float32"),
    ((5, 3), "float32"),
    ((7,), "bfloat16"),
    ((4,), "float16"),
    ((2, 3), "int32"),
    ((), "int32"),
    ((3,), "complex64"),
]
TOLERANCE = {"float32": 1e-6, "complex64": 1e-6, "float16": 1e-2, "bfloat16": 1e-1, "int32": 0}


def mixed_values(count, seed=0):
    """One stacked value per line of `MIXED`; row r belongs to replica r."""
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=(count, *shape)) * 4 for shape, _ in MIXED]
    return [jnp.asarray(value, dtype) for value, (_, dtype) in zip(values, MIXED, strict=True)]


def plain(op, value):
    wide = np.asarray(value, "complex128" if jnp.iscomplexobj(value) else "float64")
    return wide.sum(axis=0) if op == "sum" else wide.mean(axis=0)


@pytest.mark.daily(14)
@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_reduces_like_a_plain_sum_with_the_same_bits_everywhere(replicas, same_everywhere, ops, count, op):
    values = mixed_values(count)
    results = jax.jit(replicas(count).reducer(ops, op))(*values)
    for result, value, (shape, dtype) in zip(results, values, MIXED, strict=True):
        assert result.shape == shape
        assert result.dtype == ("float32" if (op, dtype) == ("mean", "int32") else dtype)
        tolerance = TOLERANCE[dtype] or 1e-6
        np.testing.assert_allclose(
            same_everywhere(result).astype("complex128"), plain(op, value), rtol=tolerance, atol=tolerance
        )


def test_the_mean_of_halves_whose_sum_is_none_is_that_of_the_numbers(replicas, same_everywhere, ops):
    (mean,) = jax.jit(replicas(3).reducer(ops, "mean"))(jnp.full((3, 2), 60000, "float16"))
    assert same_everywhere(mean).tolist() == [60000, 60000]


@pytest.mark.nightly
def test_works_op_by_op(replicas, same_everywhere, ops):
    values = [value for value, (shape, _) in zip(mixed_values(2), MIXED, strict=True) if shape in [(5, 3), ()]]
    at_once, compiled = (run(*values) for run in (replicas(2).reducer(ops), jax.jit(replicas(2).reducer(ops))))
    for eager, expected in zip(at_once, compiled, strict=True):
        np.testing.assert_array_equal(same_everywhere(eager), np.asarray(expected))


@pytest.mark.daily(8)
@pytest.mark.parametrize(
    "options",
    [CommunicationOptions(bytes_per_pack=size) for size in (1, 24, 1 << 20)]
    + [CommunicationOptions(bytes_per_pack=64, compression="bfloat16")],
    ids=["one_byte", "some", "all", "some_compressed"],
)
def test_packing_and_compression_keep_every_value_in_its_place(replicas, same_everywhere, ops, options):
    values = [jnp.round(value) if value.dtype != "complex64" else value for value in mixed_values(8)]
    results = jax.jit(replicas(8).reducer(ops, "sum", options))(*values)
    for result, value, (shape, dtype) in zip(results, values, MIXED, strict=True):
        assert (result.shape, result.dtype) == (shape, dtype)
        np.testing.assert_allclose(
            same_everywhere(result).astype("complex128"), plain("sum", value), atol=1e-5, rtol=1e-2
        )


def test_no_values_give_no_values(replicas, ops):
    def reduce_nothing(x):
        assert ops.all_reduce("sum", [], axis_name=REPLICA_AXIS, num_replicas=2) == []
        return x

    replicas(2).map(reduce_nothing, equal=False)(jnp.zeros(2))


def test_nan_and_infinity_pass_through(replicas, same_everywhere, ops):
    values = jnp.ones((3, 4)).at[0, 0].set(jnp.nan).at[1, 1].set(jnp.inf).at[2, 2].set(-jnp.inf)
    [result] = jax.jit(replicas(3).reducer(ops))(values)
    np.testing.assert_array_equal(same_everywhere(result), [np.nan, np.inf, -np.inf, 3])


def test_results_are_typed_as_equal(replicas, ops):
    def check(x):
        [total] = ops.all_reduce("mean", [x], axis_name=REPLICA_AXIS, num_replicas=3)
        assert varying_axes(x) == {REPLICA_AXIS}
        assert varying_axes(total) == frozenset()
        return total

    jax.jit(replicas(3).map(check))(jnp.ones(3))


@pytest.mark.daily(2)
def test_a_single_replica_takes_equal_values_and_sends_nothing(replicas, ops, count_ops):
    def reduce_constant(x):
        del x
        return ops.all_reduce("mean", [jnp.arange(3)], axis_name=REPLICA_AXIS, num_replicas=1)

    [result] = replicas(1).map(reduce_constant)(jnp.zeros(1))
    np.testing.assert_array_equal(result, [0.0, 1.0, 2.0])
    exact = jnp.full((1, 2), 1 + 2**-20)
    options = CommunicationOptions(compression="bfloat16")
    assert replicas(1).reducer(ops, "sum", options)(exact)[0][0] == exact[0, 0]
    hlo = replicas(1).hlo(ops, [exact])
    assert count_ops(hlo, "all-reduce") == count_ops(hlo, "collective-permute") == 0


def test_the_mean_of_small_integers_does_not_wrap(replicas, ops):
    [result] = jax.jit(replicas(3).reducer(ops, "mean"))(jnp.full((3, 2), 100, "int8"))
    assert result.dtype == "float32"
    np.testing.assert_array_equal(result, [100.0, 100.0])


@pytest.mark.daily(3)
@pytest.mark.parametrize(("dtype", "wire"), [("float32", "bf16"), ("float16", "f16"), ("int32", "i32")])
def test_compression_shows_on_the_wire_and_not_in_the_dtype(replicas, ops, dtype, wire):
    reduce = jax.jit(replicas(2).reducer(ops, "sum", CommunicationOptions(compression="bfloat16")))
    values = jnp.full((2, 4), 3, dtype)
    assert reduce(values)[0].dtype == dtype
    text = reduce.lower(values).as_text()
    results = re.findall(r"(?:all_reduce|all_gather|collective_permute)\"?.*?-> tensor<(?:\d+x)+(\w+)>", text, re.S)
    assert set(results) == {wire}


def test_gradients_agree_with_an_all_reduce_of_the_gradients(replicas, ops):
    """The case of the reference: y_r = sum(x) * x_r with x = 1, 2 has dy/dx = 6 on both; a mean alone has 1."""

    def grads(x):
        def by_sum(x):
            [total, _] = ops.all_reduce("sum", [x, x.astype("int32")], axis_name=REPLICA_AXIS, num_replicas=2)
            return (total * x)[0]

        def by_mean(x):
            [mean] = ops.all_reduce("mean", [x], axis_name=REPLICA_AXIS, num_replicas=2)
            return vary(mean, REPLICA_AXIS)[0]  # Each replica's own: left equal, JAX would count the two as one.

        return jax.grad(by_sum)(x), jax.grad(by_mean)(x)

    by_sum, by_mean = jax.jit(replicas(2).map(grads, equal=False))(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(by_sum, [6.0, 6.0])
    np.testing.assert_array_equal(by_mean, [1.0, 1.0])


@pytest.mark.daily(2)
def test_differentiates_forwards_and_twice(replicas, ops):
    reduce = replicas(3).reducer(ops)

    def loss(x):
        return (reduce(x)[0] ** 3).sum()

    x, tangent = jnp.array([1.0, 2.0, 3.0]), jnp.array([1.0, 0.0, 1.0])
    value, slope = jax.jit(lambda x: jax.jvp(loss, (x,), (tangent,)))(x)
    assert (value, slope) == (216.0, 3 * 36 * 2.0)
    np.testing.assert_array_equal(jax.jit(jax.hessian(loss))(x), np.full((3, 3), 36.0))


def reduce_inside(replicas, fn, count=2, **overrides):
    def call(x):
        arguments = {"op": "sum", "axis_name": REPLICA_AXIS, "num_replicas": count, **overrides}
        NcclAllReduce().all_reduce(arguments.pop("op"), fn(x), **arguments)
        return x

    replicas(count).map(call, equal=False)(jnp.ones(count))


def test_an_equal_value_is_refused_because_it_would_be_multiplied(replicas):
    with pytest.raises(
        ReduceError, match=r"Value 1 \(shape \(3,\), dtype float32\) is equal on all 2.*multiply it by 2"
    ):
        reduce_inside(replicas, lambda x: [x, jnp.ones(3)])
    with pytest.raises(ReduceError, match=r"Value 1 \(shape \(\), dtype float32\) is equal on all 2"):
        reduce_inside(replicas, lambda x: [x, jnp.float32(3)])


@pytest.mark.parametrize("dtype", ["bool", "key<fry>"])
def test_what_is_no_number_is_refused(replicas, dtype):
    def no_number(x):
        return [x > 0 if dtype == "bool" else jax.random.wrap_key_data(jnp.uint32(x + jnp.zeros(2)))]

    with pytest.raises(ReduceError, match=f"dtype {dtype}"):
        reduce_inside(replicas, no_number)


@pytest.mark.parametrize("value", [None, "three", object()])
def test_what_is_no_array_is_refused(replicas, value):
    with pytest.raises(ArgumentError, match=r"Value 0 must be an array, got"):
        reduce_inside(replicas, lambda x: [value])


def test_values_must_be_a_list(replicas):
    with pytest.raises(ArgumentError, match=r"must be a list of arrays"):
        reduce_inside(replicas, lambda x: x)


def test_an_unknown_op_is_refused(replicas):
    with pytest.raises(ReduceError, match="'max'"):
        reduce_inside(replicas, lambda x: [x], op="max")


def test_options_must_be_options(replicas):
    with pytest.raises(ArgumentError, match=r"CommunicationOptions or None, got \{\}"):
        reduce_inside(replicas, lambda x: [x], options={})


def test_the_number_of_replicas_must_be_the_size_of_the_axis(replicas):
    with pytest.raises(ArgumentError, match=r"size of the axis 'replica', 2, got 4"):
        reduce_inside(replicas, lambda x: [x], num_replicas=4)


def test_outside_the_axis_there_is_nothing_to_reduce_over():
    with pytest.raises(ContextError, match=r"no axis 'replica' here"):
        NcclAllReduce().all_reduce("sum", [jnp.ones(2)], axis_name=REPLICA_AXIS, num_replicas=2)


@pytest.mark.parametrize("method", ["reduce_implementation", "batch_reduce_implementation", "broadcast", "reduce"])
def test_methods_that_tensorflow_calls_are_refused_with_what_to_define(method):
    """Or the class would be made, and nobody would call them."""
    with pytest.raises(ArgumentError, match=rf"Mine defines {method}, .* Define _all_reduce_sum"):
        type("Mine", (NcclAllReduce,), {method: lambda self, *args: args})


def test_ops_that_return_no_sums_are_told_so():
    class Forgetful(rx.CrossDeviceOps):
        def _all_reduce_sum(self, buffers, axis_name, num_replicas):
            [jax.lax.psum(buffer, axis_name) for buffer in buffers]

    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"], cross_device_ops=Forgetful())
    step = lambda: rx.get_replica_context().all_reduce("sum", jax.lax.axis_index("replica"))  # noqa: E731
    with pytest.raises(ArgumentError, match=r"Forgetful._all_reduce_sum must return a list of 1 sums, .* got None"):
        strategy.run(step)
