"""Pytrees as JSON."""

from __future__ import annotations

import collections
import json

import jax
import numpy as np
import pytest
from hypothesis import given, strategies as st

from replicax.errors import ExportError
from replicax.exporting.pytrees import flattened, is_value, unflattened

plain = st.none() | st.booleans() | st.text(max_size=3)
trees = st.recursive(
    plain | st.integers(0, 9).map(np.float32),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(trees)
def test_a_pytree_survives_json(tree):
    description, leaves = flattened(tree, is_value)
    again = unflattened(json.loads(json.dumps(description)), leaves)
    assert again == tree
    assert jax.tree.structure(again) == jax.tree.structure(tree)


def test_what_needs_the_users_code_is_refused():
    pair = collections.namedtuple("Pair", "a b")
    for tree in (pair(1, 2), {1: np.zeros(1)}, object()):
        with pytest.raises(ExportError, match="needs none of your code"):
            flattened([tree], is_value)


def test_bools_are_no_values():
    assert is_value(1)
    assert is_value(np.float32(1))
    assert is_value(jax.ShapeDtypeStruct((), np.float32))
    assert not is_value(True)
    assert not is_value("text")
