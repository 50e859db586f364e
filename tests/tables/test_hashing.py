"""Keys of any kind become ids of a table."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.tables import hashed_ids


def test_the_same_key_has_the_same_id_in_every_form():
    keys = np.array([0, 5, -3, 2**31 - 1, 5], "int32")
    ids = hashed_ids(keys, 1000)
    np.testing.assert_array_equal(ids, hashed_ids(jnp.asarray(keys), 1000))
    np.testing.assert_array_equal(ids, hashed_ids(keys.astype("int64"), 1000))
    assert ids[1] == ids[4]
    assert hashed_ids(["a", "b"], 1000).tolist() == hashed_ids([b"a", b"b"], 1000).tolist()


def test_ids_are_those_of_earlier_versions():
    """A table that was trained with these ids would be useless with others."""
    assert hashed_ids(["tea", "coffee"], 1_000_000).tolist() == [538234, 109113]
    assert hashed_ids(np.array([1, 2**40 + 1]), 1_000_000).tolist() == [470133, 456510]


def test_ids_are_spread_evenly():
    ids = hashed_ids(np.arange(100_000), 100)
    counts = np.bincount(ids, minlength=100)
    assert counts.min() > 800
    assert counts.max() < 1200


def test_wide_keys_differ_by_their_upper_half_and_by_salt():
    keys = np.arange(1, 1000)
    assert (hashed_ids(keys + (keys << 33), 2**30) != hashed_ids(keys, 2**30)).all()
    assert (hashed_ids(["a", "b"], 2**30, salt=1) != hashed_ids(["a", "b"], 2**30)).all()


@pytest.mark.parametrize("keys", [[1.5], [None], jnp.ones(2)])
def test_other_keys_are_refused(keys: object):
    with pytest.raises(rx.errors.ArgumentError, match="Keys are integers, strings or bytes"):
        hashed_ids(keys, 10)
