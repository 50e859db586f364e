"""Combining the rows of several ids, against NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from replicax.tables.layer import combined

ROWS = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
WEIGHTS = np.array([[1, 0.5, 2, 0], [3, 0, 0, 0]], np.float32)
DIVISORS = {
    "sum": lambda weights: np.ones(len(weights)),
    "mean": lambda weights: weights.sum(1),
    "sqrtn": lambda weights: np.sqrt((weights**2).sum(1)),
}


@pytest.mark.parametrize("combiner", DIVISORS)
@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["alike", "weighted"])
def test_each_combiner_divides_by_the_weights(combiner: str, weights: np.ndarray | None):
    given = np.ones((2, 4), np.float32) if weights is None else weights
    expected = np.einsum("bik,bi->bk", ROWS, given) / DIVISORS[combiner](given)[:, None]
    found = combined(jnp.asarray(ROWS), None if weights is None else jnp.asarray(weights), combiner, "f")
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", DIVISORS)
def test_of_padding_alone_there_is_zero(combiner: str):
    assert not np.any(combined(jnp.asarray(ROWS), jnp.zeros((2, 4)), combiner, "f"))
