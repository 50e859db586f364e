from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from replicax.collectives import CommunicationOptions, NcclAllReduce
from replicax.errors import ArgumentError


def lowered_all_reduces(replicas, ops, options=None):
    """Counts them before XLA merges them: one a buffer."""
    values = [jnp.ones((4, size)) for size in (1, 2, 3, 4, 100_000)]
    text = jax.jit(replicas(4).reducer(ops, options=options)).lower(*values).as_text()
    return text.count('"stablehlo.all_reduce"')


@pytest.mark.parametrize(("num_packs", "expected"), [(0, 5), (1, 2), (2, 3)])
def test_small_values_share_a_number_of_packs(replicas, num_packs, expected):
    assert lowered_all_reduces(replicas, NcclAllReduce(num_packs)) == expected


def test_bytes_per_pack_wins_over_the_number_of_packs(replicas):
    assert lowered_all_reduces(replicas, NcclAllReduce(num_packs=0), CommunicationOptions(bytes_per_pack=12)) == 4


def test_is_the_all_reduce_of_xla(replicas, count_ops):
    hlo = replicas(8).hlo(NcclAllReduce(), [jnp.ones((8, 100)), jnp.ones((8, 100, 300))])
    assert count_ops(hlo, "all-reduce") >= 1
    assert count_ops(hlo, "collective-permute") == 0


@pytest.mark.parametrize("num_packs", [-1, 1.0, True, "2", None])
def test_a_bad_number_of_packs_is_refused(num_packs):
    with pytest.raises(ArgumentError, match="num_packs"):
        NcclAllReduce(num_packs)


def test_is_a_value():
    assert NcclAllReduce(2) == NcclAllReduce(num_packs=2)
    assert len({NcclAllReduce(), NcclAllReduce(), NcclAllReduce(0)}) == 2
