from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives import CommunicationOptions, PowerSGD
from replicax.collectives.compression.power_sgd import as_matrix
from replicax.errors import ArgumentError
from tests.collectives.compression.reference import power_sgd_step


@pytest.mark.daily(2)
@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("rank", [1, 3])
def test_each_step_equals_the_algorithm_in_numpy(reducer, zero_memory, same_everywhere, count, rank):
    compression, random = PowerSGD(rank), np.random.default_rng(rank)
    reduce, memory = reducer(compression, count), zero_memory(compression, count, (20, 30))
    errors, q = np.zeros((count, 20, 30)), np.asarray(memory["q"], "float64")
    for _ in range(4):
        gradients = random.normal(size=(count, 20, 30)).astype("float32")
        [total], [memory] = reduce([gradients], [memory])
        expected, errors, q = power_sgd_step(gradients, errors, q)
        np.testing.assert_allclose(same_everywhere(total), expected, atol=2e-4)
        np.testing.assert_allclose(memory["error"], errors, atol=2e-4)
        np.testing.assert_allclose(np.abs(memory["q"]), np.abs(q), atol=2e-4)  # Columns of p may be negated.


def test_a_gradient_of_low_rank_arrives_whole_after_a_step(reducer, zero_memory):
    compression, random = PowerSGD(rank=2), np.random.default_rng(0)
    reduce, memory = reducer(compression, 2), zero_memory(compression, 2, (40, 30))
    low = (random.normal(size=(40, 2)) @ random.normal(size=(2, 30))).astype("float32")
    gradients = np.stack([low, 3 * low])
    [total], [memory] = reduce([gradients], [memory])
    np.testing.assert_allclose(total, 4 * low, atol=1e-3)
    np.testing.assert_allclose(memory["error"], np.zeros((2, 40, 30)), atol=1e-3)


def test_what_does_not_arrive_is_kept(reducer, zero_memory):
    compression, random = PowerSGD(rank=2), np.random.default_rng(1)
    reduce, memory = reducer(compression, 3), zero_memory(compression, 3, (3, 3, 4, 16))
    computed, arrived = 0, 0
    for _ in range(10):
        gradients = random.normal(size=(3, 3, 3, 4, 16)).astype("float32")
        [total], [memory] = reduce([gradients], [memory])
        computed, arrived = computed + gradients.sum(0), arrived + np.asarray(total)
    np.testing.assert_allclose(arrived + np.sum(memory["error"], 0), computed, atol=1e-3)


def test_zeros_do_no_harm_to_what_follows(reducer, zero_memory):
    """A product of zeros has no directions; q must find those of the next gradient again."""
    compression, random = PowerSGD(rank=2), np.random.default_rng(2)
    reduce, memory = reducer(compression, 2), zero_memory(compression, 2, (40, 30))
    for _ in range(2):
        [total], [memory] = reduce([np.zeros((2, 40, 30), "float32")], [memory])
        np.testing.assert_array_equal(total, np.zeros((40, 30)))
    gradients = np.repeat((random.normal(size=(40, 1)) @ random.normal(size=(1, 30)))[None], 2, 0).astype("float32")
    for _ in range(3):
        [total], [memory] = reduce([gradients], [memory])
    assert np.linalg.norm(memory["error"]) < 1e-2 * np.linalg.norm(gradients)


def test_what_is_not_finite_is_seen_and_not_remembered(reducer, zero_memory):
    compression, random = PowerSGD(rank=1), np.random.default_rng(3)
    reduce, memory = reducer(compression, 2), zero_memory(compression, 2, (20, 30))
    good = random.normal(size=(2, 20, 30)).astype("float32")
    _, [memory] = reduce([good], [memory])
    spoiled = good.copy()
    spoiled[1, 4, 4] = np.inf
    [total], [after] = reduce([spoiled], [memory])
    assert not np.isfinite(np.asarray(total)).any()
    for name, value in memory.items():
        np.testing.assert_array_equal(after[name], value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "complex64"])
def test_every_dtype_keeps_its_dtype(reducer, zero_memory, dtype):
    compression, random = PowerSGD(rank=1), np.random.default_rng(4)
    low = random.normal(size=(20, 1)) @ random.normal(size=(1, 30)) * (1 + (1j if dtype == "complex64" else 0))
    memory = zero_memory(compression, 2, (20, 30), "complex64" if dtype == "complex64" else "float32")
    [total], [new] = reducer(compression, 2)([jnp.asarray([low, low], dtype)], [memory])
    assert total.dtype == dtype
    assert new["q"].dtype == memory["q"].dtype
    np.testing.assert_allclose(np.asarray(total).astype(low.dtype), 2 * low, atol=0.1)


def test_without_memory_each_step_begins_anew(reducer):
    compression = PowerSGD(rank=1, error_feedback=False, warm_start=False)
    assert not compression.has_memory
    low = np.ones((2, 20, 30), "float32")
    [total], memory = reducer(compression, 2)([low], [{}])
    np.testing.assert_allclose(total, 2 * low[0], atol=1e-4)
    assert memory == [{}]


@pytest.mark.parametrize(
    ("shape", "rank", "compressed"),
    [((100, 100), 4, True), ((1000,), 1, False), ((), 1, False), ((0, 9), 1, False), ((20, 10), 4, False)],
)
def test_only_what_gets_smaller_is_compressed(shape, rank, compressed):
    assert PowerSGD(rank).compresses(shape, "float32") is compressed
    assert not PowerSGD(rank).compresses(shape, "int32")


def test_more_dimensions_are_divided_evenly():
    assert as_matrix((64, 8, 8)) == (64, 64)
    assert as_matrix((5,)) == (5, 1)


@pytest.mark.parametrize(
    ("field", "value"),
    [("rank", 0), ("rank", 1.5), ("min_compression_rate", 0.5), ("warm_start", None), ("seed", -1)],
)
def test_bad_arguments_are_refused(field, value):
    with pytest.raises(ArgumentError, match=field):
        PowerSGD(**{field: value})


def test_the_name_stands_for_the_defaults():
    assert CommunicationOptions(compression="powersgd").compression == PowerSGD()
