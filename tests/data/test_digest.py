"""Digests by which workers find that they have other batches."""

from __future__ import annotations

import numpy as np
import pytest

from replicax.data.input_steps import digest


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_any_other_number_of_a_small_batch_is_another_digest(dtype):
    batch = {"x": np.zeros((9, 5), dtype), "y": np.zeros(9)}
    found = {digest(batch)}
    for index in np.ndindex(9, 5):
        other = batch["x"].copy()
        other[index] = 1
        found.add(digest({**batch, "x": other}))
    assert len(found) == 1 + 45


def test_of_a_large_batch_some_rows_tell_orders_apart():
    rows = np.arange(200_000, dtype=np.float32).reshape(-1, 50)
    assert digest(rows) == digest(rows.copy())
    assert digest(rows) != digest(rows[::-1])
