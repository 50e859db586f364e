from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax.collectives import HierarchicalCopyAllReduce
from replicax.collectives.hierarchical import default_group_size
from replicax.errors import ArgumentError


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 2), (4, 2), (5, 4), (7, 4), (8, 4), (16, 4), (64, 8)])
def test_groups_are_about_the_square_root(count, size):
    assert default_group_size(count) == size


@pytest.mark.daily(6)
@pytest.mark.parametrize("count", [2, 3, 5, 7, 8])
@pytest.mark.parametrize("group_size", [None, 1, 3, 8, 100])
def test_any_group_size_gives_the_sum(replicas, same_everywhere, count, group_size):
    values = jnp.arange(count * 3.0).reshape(count, 3)
    [result] = jax.jit(replicas(count).reducer(HierarchicalCopyAllReduce(group_size=group_size)))(values)
    np.testing.assert_array_equal(same_everywhere(result), values.sum(axis=0))


@pytest.mark.parametrize(("group_size", "rounds"), [(None, 2 + 1 + 1 + 2), (3, 2 + 2 + 2 + 2), (8, 3 + 0 + 0 + 3)])
def test_two_levels_show_in_the_program(replicas, count_ops, group_size, rounds):
    hlo = replicas(8).hlo(HierarchicalCopyAllReduce(group_size=group_size), [jnp.ones((8, 5))])
    assert count_ops(hlo, "all-reduce") == 0
    assert count_ops(hlo, "collective-permute") == rounds


def test_only_heads_cross_the_groups(replicas):
    hlo = replicas(8).hlo(HierarchicalCopyAllReduce(group_size=4), [jnp.ones((8, 5))])
    sends = [
        line.split("source_target_pairs=")[1].split("}}")[0] for line in hlo.splitlines() if "target_pairs" in line
    ]
    assert sends.count("{{4,0") == sends.count("{{0,4") == 1


def test_small_values_share_a_pack(replicas, count_ops):
    hlo = replicas(8).hlo(HierarchicalCopyAllReduce(), [jnp.ones((8, 5)), jnp.ones((8, 2, 2)), jnp.ones((8,))])
    assert count_ops(hlo, "collective-permute") == 6


@pytest.mark.parametrize(("field", "value"), [("num_packs", -1), ("group_size", 0), ("group_size", 1.5)])
def test_a_bad_field_is_refused(field, value):
    with pytest.raises(ArgumentError, match=f"{field}.*{value}"):
        HierarchicalCopyAllReduce(**{field: value})
