from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.data.batches import check_signature, count_rows, host_batch, signature
from replicax.errors import BatchError


@pytest.mark.parametrize(
    "leaf",
    [np.arange(6.0).reshape(3, 2), jnp.ones((3, 2))],
    ids=lambda leaf: type(leaf).__module__,
)
def test_arrays_of_all_libraries_become_numpy(leaf):
    batch = host_batch({"x": leaf, "y": None}, "Batch 0")
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].shape == (3, 2)
    assert batch["y"] is None
    assert count_rows(batch) == 3


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((), "holds no array"),
        (None, "holds no array"),
        ({"x": np.zeros((4, 2)), "y": 3.0}, r"leaf \['y'\]: a scalar \(3.0\)"),
        (np.float32(1), "a scalar"),
        ([[1, 2], [3, 4]], r"leaf \[0\]\[0\]: a scalar \(1\).*lists of numbers into arrays"),
        ({"x": np.array(["a", "b"])}, r"leaf \['x'\]: values of dtype <U1"),
        (np.array([None, 1]), "values of dtype object cannot"),
        ({"v": np.array([None, [1], [2, 3]], object)}, r"\['v'\]: .* arrays or lists.*`padded_batch`"),
        (np.array(["2020-01-01"], "M8[s]"), "values of dtype datetime64"),
        (np.array([1, 2], "m8[s]"), "values of dtype timedelta64"),
        (np.ma.masked_less([1, -2], 0), r"a masked array.*\.filled"),
        ("text", "a str is not an array: 'text'"),
        ({"x": {1, 2}}, "a set is not an array"),
        (np.zeros((0, 3)), "zero rows"),
        ((np.zeros((4, 2)), np.zeros(3)), r"disagree.*4 rows, leaf \[0\]; 3 rows, leaf \[1\]"),
    ],
)
def test_what_is_not_a_batch_is_told_why(batch, says):
    with pytest.raises(BatchError, match=f"Batch 5.*{says}"):
        host_batch(batch, "Batch 5")


def test_random_keys_are_told_why():
    keys = jax.random.split(jax.random.key(0), 4)
    with pytest.raises(BatchError, match=r"Batch 0, leaf \['key'\]: random keys .* jax\.random\.key_data\(keys\)"):
        host_batch({"key": keys}, "Batch 0")
    rows = host_batch({"key": jax.random.key_data(keys)}, "Batch 0")["key"]
    assert jax.random.normal(rows[3]) == jax.random.normal(keys[3])
    assert jax.random.normal(jax.random.wrap_key_data(rows)[3]) == jax.random.normal(keys[3])


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"x": np.zeros((4, 2), np.float32), "y": np.zeros(4, np.int32)}, r"'y'"),
        ({"x": np.zeros(4, np.float32)}, "rank 1"),
        ({"x": np.zeros((4, 2), np.int32)}, "int32"),
        (np.zeros((4, 2), np.float32), r"PyTreeDef\(\*\)"),
    ],
)
def test_a_changed_structure_shows_both(found, says):
    expected = signature({"x": np.zeros((8, 2), np.float32)})
    with pytest.raises(BatchError, match=rf"(?s)Batch 3 .*before: .*'x'.*float32 of rank 2.*batch 3: .*{says}"):
        check_signature(3, signature(found), expected)


def test_sizes_may_change():
    check_signature(1, signature(np.zeros((3, 9))), signature(np.zeros((8, 7))))
