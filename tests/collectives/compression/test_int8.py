from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives import CommunicationOptions, Int8
from replicax.contracts.reduce_op import ReduceOp
from replicax.errors import ArgumentError
from tests.collectives.compression.reference import int8_step


@pytest.mark.daily(2)
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("size", [40, 1500])
def test_each_step_equals_the_algorithm_in_numpy(reducer, zero_memory, same_everywhere, count, size):
    compression, random = Int8(block_size=64, min_size=1), np.random.default_rng(size)
    reduce, memory = reducer(compression, count), zero_memory(compression, count, (size,))
    errors = np.zeros((count, size), "float32")
    for _ in range(4):
        gradients = random.normal(size=(count, size)).astype("float32")
        [total], [memory] = reduce([gradients], [memory])
        expected, errors = int8_step(gradients, errors, 64)
        np.testing.assert_allclose(same_everywhere(total), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(memory["error"], errors, atol=1e-5)


def test_nothing_is_lost_over_the_steps(reducer, zero_memory):
    """What has arrived and what is kept is what was computed; the kept part does not grow."""
    compression, random = Int8(min_size=1), np.random.default_rng(1)
    reduce, memory = reducer(compression, 3), zero_memory(compression, 3, (20, 30))
    computed, arrived, kept = np.zeros((20, 30)), np.zeros((20, 30)), []
    for _ in range(20):
        gradients = random.normal(size=(3, 20, 30)).astype("float32")
        [total], [memory] = reduce([gradients], [memory])
        computed, arrived = computed + gradients.sum(0), arrived + np.asarray(total)
        kept.append(np.abs(memory["error"]).max())
    np.testing.assert_allclose(arrived + np.sum(memory["error"], 0), computed, atol=1e-4)
    assert max(kept) < 0.1


def test_without_error_feedback_each_step_is_as_the_first(reducer):
    compression, gradients = Int8(min_size=1, error_feedback=False), np.random.default_rng(2).normal(size=(2, 400))
    assert not compression.has_memory
    assert compression.memory_of((400,), np.dtype("float32"), 0) == {}
    [first], memory = reducer(compression, 2)([gradients.astype("float32")], [{}])
    expected, _ = int8_step(gradients.astype("float32"), np.zeros((2, 400)), 256)
    np.testing.assert_allclose(first, expected, atol=1e-5)
    assert memory == [{}]


def test_small_values_travel_as_they_are(reducer):
    values = [np.full((2, 5), 1 + 2.0**-20, "float32"), np.arange(2, dtype="int32")]
    sums, _ = reducer(Int8(error_feedback=False), 2)(values, [{}, {}])
    np.testing.assert_array_equal(sums[0], values[0].sum(0))
    assert int(sums[1]) == 1


@pytest.mark.daily(2)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("op", list(ReduceOp))
def test_every_dtype_keeps_its_dtype(reducer, zero_memory, dtype, op):
    compression, random = Int8(min_size=1), np.random.default_rng(3)
    values = jnp.asarray(random.normal(size=(2, 7, 30)) + (1j if dtype == "complex64" else 0), dtype)
    memory = zero_memory(compression, 2, (7, 30), "complex64" if dtype == "complex64" else "float32")
    [found], [new] = reducer(compression, 2, op)([values], [memory])
    wide = np.asarray(values).astype("complex64" if dtype == "complex64" else "float32")
    assert found.dtype == dtype
    assert new["error"].dtype == memory["error"].dtype
    expected = wide.sum(0) if op is ReduceOp.SUM else wide.mean(0)
    np.testing.assert_allclose(np.asarray(found).astype(wide.dtype), expected, atol=0.1)


def test_packs_change_nothing_but_the_blocks(reducer):
    random = np.random.default_rng(4)
    values = [random.normal(size=(2, *shape)).astype("float32") for shape in [(40,), (3, 50), (9, 9, 9)]]
    for bytes_per_pack in (0, 1, 1 << 20):
        sums, _ = reducer(Int8(min_size=1, error_feedback=False), 2, ReduceOp.SUM, bytes_per_pack)(values, [{}] * 3)
        for total, value in zip(sums, values, strict=True):
            np.testing.assert_allclose(total, value.sum(0), atol=0.1)


@pytest.mark.daily(2)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 599])
def test_what_is_not_finite_is_seen_and_not_remembered(reducer, zero_memory, bad, position):
    compression, random = Int8(min_size=1, block_size=64), np.random.default_rng(5)
    reduce, memory = reducer(compression, 2), [zero_memory(compression, 2, (600,))] * 2
    good = random.normal(size=(2, 600)).astype("float32")
    _, memory = reduce([good, good], memory)
    spoiled = good.copy()
    spoiled[1, position] = bad
    sums, after = reduce([spoiled, good], memory)
    assert np.isnan(np.asarray(sums[0])[position])
    assert np.isfinite(np.asarray(sums[0])).sum() == 600 - 60  # One block of 60 numbers: 300 a replica, in 5 blocks.
    for before, kept in zip(memory, after, strict=True):
        np.testing.assert_array_equal(kept["error"], before["error"])


def test_zeros_stay_zeros(reducer, zero_memory):
    compression = Int8(min_size=1)
    [total], [memory] = reducer(compression, 2)([np.zeros((2, 300), "float32")], [zero_memory(compression, 2, (300,))])
    np.testing.assert_array_equal(total, np.zeros(300))
    np.testing.assert_array_equal(memory["error"], np.zeros((2, 300)))


@pytest.mark.parametrize(("field", "value"), [("block_size", 0), ("min_size", -1), ("error_feedback", 1)])
def test_bad_arguments_are_refused(field, value):
    with pytest.raises(ArgumentError, match=field):
        Int8(**{field: value})


def test_the_name_stands_for_the_defaults():
    assert CommunicationOptions(compression="INT8").compression == Int8()
    assert hash(CommunicationOptions(compression=Int8(block_size=8)))
