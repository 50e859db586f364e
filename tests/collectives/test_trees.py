from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives.trees import copy_from_heads, sum_to_heads
from replicax.runtime import REPLICA_AXIS

GROUPS = [
    ([[0, 1, 2, 3, 4, 5, 6, 7]], "one group"),
    ([[3, 1, 0], [7, 2], [5]], "uneven groups, some replicas in none"),
    ([[0], [1]], "groups of one"),
]


@pytest.fixture(params=[groups for groups, _ in GROUPS], ids=[name for _, name in GROUPS])
def groups(request):
    return request.param


def test_each_head_gets_the_sum_of_its_group(replicas, groups):
    values = jnp.array([1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 3.0])
    sums = jax.jit(replicas(8).map(lambda x: sum_to_heads(x, groups, REPLICA_AXIS), equal=False))(values)
    for group in groups:
        assert sums[group[0]] == sum(float(values[i]) for i in group)


def test_each_group_gets_the_bits_of_its_head(replicas, groups):
    values = np.array([np.nan, -0.0, 2.0, np.inf, 4.0, 5.0, 6.0, -0.0], np.float32)
    copies = jax.jit(replicas(8).map(lambda x: copy_from_heads(x, groups, REPLICA_AXIS), equal=False))(values)
    expected = values.copy()
    for group in groups:
        expected[group] = values[group[0]]
    np.testing.assert_array_equal(np.asarray(copies).view("uint32"), expected.view("uint32"))


@pytest.mark.parametrize(("length", "rounds"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (8, 3)])
def test_a_group_of_n_takes_log2_n_rounds(replicas, count_ops, length, rounds):
    for tree in (sum_to_heads, copy_from_heads):
        fn = replicas(8).map(lambda x, tree=tree: tree(x, [range(length)], REPLICA_AXIS), equal=False)
        assert count_ops(jax.jit(fn).lower(jnp.ones(8)).compile().as_text(), "collective-permute") == rounds
