from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from replicax.collectives.packing import SMALL_VALUE_BYTES, packs_by_bytes, packs_by_number

SHAPES = [(), (0,), (3,), (2, 2), (5, 0), (7,)]
LEAVES = st.lists(st.tuples(st.sampled_from(SHAPES), st.sampled_from(["float32", "int32", "bfloat16"])), max_size=8)


def arrays(leaves):
    return [jnp.full(shape, i, dtype) for i, (shape, dtype) in enumerate(leaves)]


@settings(max_examples=40)
@given(leaves=LEAVES, limit=st.integers(0, 40), by_bytes=st.booleans())
def test_unpacking_undoes_packing(leaves, limit, by_bytes):
    values = arrays(leaves)
    packing = packs_by_bytes(values, limit) if by_bytes else packs_by_number(values, limit)
    assert sorted(i for pack in packing.packs for i in pack) == list(range(len(values)))
    buffers = packing.pack(values)
    if by_bytes:
        assert all(b.nbytes <= limit for b, pack in zip(buffers, packing.packs, strict=True) if len(pack) > 1)
    for value, restored in zip(values, packing.unpack(buffers), strict=True):
        assert (restored.shape, restored.dtype) == (value.shape, value.dtype)
        np.testing.assert_array_equal(restored, value)


def test_packs_fill_in_order_and_large_values_stay_alone():
    values = [jnp.zeros(size) for size in (1, 2, 100, 1, 1, 4)]
    assert packs_by_bytes(values, 16).packs == ((0, 1), (2,), (3, 4), (5,))


def test_no_limit_means_no_packs():
    values = [jnp.zeros(()), jnp.zeros(0), jnp.zeros(1)]
    assert packs_by_bytes(values, 0).packs == ((0,), (1,), (2,))
    assert packs_by_number(values, 0).packs == ((0,), (1,), (2,))


def test_only_one_dtype_shares_a_pack():
    values = [jnp.zeros(1), jnp.zeros(1, "int32"), jnp.zeros(1)]
    assert packs_by_bytes(values, 1 << 20).packs == ((0, 2), (1,))
    assert packs_by_number(values, 1).packs == ((0, 2), (1,))


@pytest.mark.parametrize(("num_packs", "packs"), [(1, 1), (2, 2), (3, 3), (9, 5)])
def test_a_number_of_packs_counts_small_values_only(num_packs, packs):
    values = [jnp.zeros(2) for _ in range(5)] + [jnp.zeros(SMALL_VALUE_BYTES // 4 + 1)]
    packing = packs_by_number(values, num_packs)
    assert packing.packs[0] == (5,)
    assert len(packing.packs) == packs + 1


def test_packs_of_a_deep_network_are_alike_so_that_one_compiled_kernel_serves_them_all():
    values = [jnp.zeros(shape) for _ in range(12) for shape in ((4, 4), (4,))]
    packs = packs_by_number(values, 1, arrays_per_pack=8).packs
    assert [len(pack) for pack in packs] == [8, 8, 8]
    assert len({tuple(values[i].shape for i in pack) for pack in packs}) == 1
    assert len(packs_by_number(values, 12, arrays_per_pack=8).packs) == 12
    assert len(packs_by_number(values, 0, arrays_per_pack=8).packs) == 24


def test_a_value_alone_is_not_copied():
    values = [jnp.zeros(3), jnp.ones((2, 2))]
    assert all(buffer is value for buffer, value in zip(packs_by_bytes(values, 4).pack(values), values, strict=True))
