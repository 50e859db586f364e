"""Partitioners: TensorFlow's arithmetic, and what of a partitioner's answer is accepted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

import replicax as rx
from replicax.errors import ArgumentError, VariableError
from replicax.parameter_server.variables.partition import count_shards, shard_bounds

F4 = np.dtype("float32")
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "parts"),
    [
        (rx.FixedShardsPartitioner(2), (10, 3), F4, [2, 1]),
        (rx.FixedShardsPartitioner(2), (1, 3), F4, [1, 1]),
        (rx.FixedShardsPartitioner(7), (5,), F4, [5]),
        # 24 bytes: the ceiling makes parts that are smaller than the least size.
        (rx.MinSizePartitioner(9, max_shards=10), (6, 1), F4, [3, 1]),
        (rx.MinSizePartitioner(4, max_shards=10), (6, 1), F4, [6, 1]),
        (rx.MinSizePartitioner(1, max_shards=10), (6, 1), F4, [6, 1]),
        (rx.MinSizePartitioner(4, max_shards=2), (6, 1), F4, [2, 1]),
        (rx.MinSizePartitioner(1), (1000, 1000), F4, [1, 1]),
        (rx.MinSizePartitioner(max_shards=100), (1 << 18, 1), F4, [4, 1]),
        (rx.MinSizePartitioner(max_shards=100), (1 << 18, 1), "bfloat16", [2, 1]),
        (rx.MaxSizePartitioner(10), (6, 1), F4, [3, 1]),
        (rx.MaxSizePartitioner(4), (6, 1), F4, [6, 1]),
        (rx.MaxSizePartitioner(1024), (6, 1), F4, [1, 1]),
        (rx.MaxSizePartitioner(1), (6, 4), F4, [6, 1]),
        (rx.MaxSizePartitioner(4, max_shards=2), (6, 1), F4, [2, 1]),
        (rx.MaxSizePartitioner(4, max_shards=0), (6, 1), F4, [6, 1]),
        (rx.MaxSizePartitioner(32, bytes_per_string=8), (6, 2), np.dtype("U5"), [3, 1]),
        (rx.MinSizePartitioner(32, max_shards=9, bytes_per_string=8), (6, 2), np.dtype("O"), [3, 1]),
    ],
)
def test_the_arithmetic_is_tensorflows(partitioner, shape, dtype, parts):
    assert partitioner(shape, dtype) == parts


@pytest.mark.parametrize("partitioner", [rx.FixedShardsPartitioner(3), rx.MinSizePartitioner(4, 3)], ids=["fix", "min"])
def test_another_axis_can_be_cut(partitioner):
    assert partitioner((2, 9, 2), F4, axis=1) == [1, 3, 1]


@given(shape=SHAPES, least=st.integers(1, 500), most=st.integers(1, 50))
def test_min_size_rounds_up(shape, least, most):
    (parts, *ones) = rx.MinSizePartitioner(least, max_shards=most)(shape, F4)
    assert parts == max(1, min(shape[0], most, math.ceil(4 * math.prod(shape) / least)))
    assert ones == [1] * (len(shape) - 1)


@given(shape=SHAPES, largest=st.integers(1, 500))
def test_max_size_keeps_parts_below_it_unless_one_row_is_larger(shape, largest):
    parts = rx.MaxSizePartitioner(largest)(shape, F4)[0]
    row = 4 * math.prod(shape[1:])
    rows = max(stop - start for start, stop in shard_bounds(shape[0], parts))
    assert rows == 1 or rows * row <= largest
    fewer = parts - 1
    assert fewer == 0 or math.ceil(shape[0] / fewer) * row > largest


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: rx.FixedShardsPartitioner(0), "`num_shards` must be an int of at least 1, got 0"),
        (lambda: rx.FixedShardsPartitioner(2.0), "got 2.0"),
        (lambda: rx.FixedShardsPartitioner(True), "got True"),
        (lambda: rx.MinSizePartitioner(min_shard_bytes=0), "`min_shard_bytes`"),
        (lambda: rx.MinSizePartitioner(max_shards=0), "`max_shards`"),
        (lambda: rx.MinSizePartitioner(bytes_per_string=0), "`bytes_per_string`"),
        (lambda: rx.MaxSizePartitioner(0), "`max_shard_bytes`"),
        (lambda: rx.MaxSizePartitioner(1, max_shards=-1), "`max_shards`"),
        (lambda: rx.MaxSizePartitioner(1, bytes_per_string=0), "`bytes_per_string`"),
    ],
)
def test_senseless_arguments_are_refused(make, says):
    with pytest.raises(ArgumentError, match=says):
        make()


@pytest.mark.parametrize(
    "partitioner",
    [rx.FixedShardsPartitioner(2), rx.MinSizePartitioner(4), rx.MaxSizePartitioner(4)],
    ids=["fixed", "min", "max"],
)
def test_a_scalar_cannot_be_cut(partitioner):
    with pytest.raises(ArgumentError, match="A scalar has no dimension"):
        partitioner((), F4)


# The parts.


@pytest.mark.parametrize(("rows", "parts", "sizes"), [(10, 3, [4, 3, 3]), (5, 2, [3, 2]), (4, 4, [1] * 4), (3, 1, [3])])
def test_the_first_parts_get_what_is_left(rows, parts, sizes):
    assert [stop - start for start, stop in shard_bounds(rows, parts)] == sizes


@given(rows=st.integers(0, 1000), parts=st.integers(1, 50))
def test_parts_follow_each_other_and_differ_by_one_row_at_most(rows, parts):
    bounds = shard_bounds(rows, parts)
    assert [start for start, _ in bounds] == [0, *[stop for _, stop in bounds[:-1]]]
    assert bounds[-1][1] == rows
    sizes = [stop - start for start, stop in bounds]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


# Asking a partitioner.


def test_without_a_partitioner_and_for_scalars_there_is_one_part():
    assert count_shards(None, (10,), F4, "v") == 1
    assert count_shards(rx.FixedShardsPartitioner(2), (), F4, "v") == 1


def test_a_partitioner_is_any_function_of_shape_and_dtype():
    asked = []

    def partitioner(shape, dtype):
        asked.append((shape, dtype))
        return [3, 1]

    assert count_shards(partitioner, [10, 2], "float16", "v") == 3
    assert asked == [((10, 2), np.dtype("float16"))]


@pytest.mark.parametrize(("asked", "rows", "parts"), [(9, 4, 4), (9, 0, 1), (np.int64(2), 4, 2)])
def test_there_are_no_more_parts_than_rows(asked, rows, parts):
    assert count_shards(lambda shape, dtype: [asked], (rows,), F4, "v") == parts


@pytest.mark.parametrize("answer", [[0, 1], [1, 2], [2], [2, 1, 1], 2, None, "21", [2.5, 1], ["2", 1], [-1, 1]])
def test_only_the_first_dimension_may_be_cut(answer):
    with pytest.raises(VariableError, match=r"for variable 'dense/kernel' of shape \(4, 3\).*return \[n, 1\]"):
        count_shards(lambda shape, dtype: answer, (4, 3), F4, "dense/kernel")
