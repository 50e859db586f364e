"""Rows of first values, without the others."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax.tables.initial_rows import NotByRowsError, initial_rows, places

INITIALIZERS = {
    "uniform": lambda: keras.initializers.RandomUniform(seed=1),
    "normal": lambda: keras.initializers.RandomNormal(seed=1),
    "truncated": lambda: keras.initializers.TruncatedNormal(seed=1),
    "fan out": lambda: keras.initializers.VarianceScaling(mode="fan_out", seed=1),
    "glorot": lambda: keras.initializers.GlorotUniform(seed=1),
    "constant": lambda: keras.initializers.Constant(2.0),
    "zeros": lambda: keras.initializers.Zeros(),
}


@pytest.mark.daily(2)
@pytest.mark.parametrize("name", INITIALIZERS)
def test_rows_are_those_of_the_whole(name):
    initializer, numbers = INITIALIZERS[name](), np.array([0, 5, 1002, 77], np.uint32)
    rows = jax.jit(initial_rows(initializer, (1003, 7), "float32"))(np.zeros(4, np.uint32), numbers)
    whole = np.asarray(initializer((1003, 7), dtype="float32"))
    np.testing.assert_allclose(rows, whole[numbers], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("columns", [1, 7, 64, 70_000])
def test_places_are_products_of_64_bits(columns):
    numbers = np.random.default_rng(0).integers(0, 2**63, 20, dtype=np.uint64)
    halves = [jnp.asarray(half.astype(np.uint32)) for half in (numbers >> np.uint64(32), numbers)]
    high, low = (np.asarray(half).astype(np.uint64) for half in places(tuple(halves), columns))
    with np.errstate(over="ignore"):
        wanted = (numbers * np.uint64(columns))[:, None] + np.arange(columns, dtype=np.uint64)
    np.testing.assert_array_equal((high << np.uint64(32)) | low, wanted)


def test_what_mixes_rows_is_refused():
    with pytest.raises(NotByRowsError, match="`qr`"):
        initial_rows(keras.initializers.Orthogonal(seed=0), (100, 4), "float32")
    value = np.arange(12, dtype=np.float32).reshape(3, 4)
    with pytest.raises(NotByRowsError, match="an array"):
        initial_rows(lambda shape, dtype: jnp.asarray(value, dtype), (3, 4), "float32")
    with pytest.raises(NotByRowsError, match="rbg"):
        initial_rows(lambda shape, dtype: jax.random.normal(jax.random.key(0, impl="rbg"), shape), (3, 4), "float32")
