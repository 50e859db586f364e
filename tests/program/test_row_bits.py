"""A replica's part of a draw, hashed from the numbers of its entries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import replicax.program.random.row_bits as row_bits

MESH_SIZE = 4


def on_replicas(key, shape, dimension, bit_width):
    """Returns the parts of all replicas, put together."""

    def draw(whole):
        return jax.random.split(key, whole) if bit_width is None else jax.random.bits(key, whole, f"uint{bit_width}")

    def body(key):
        bits = row_bits.bits_of_rows(key, bit_width, shape, dimension, MESH_SIZE, draw)
        return jax.random.key_data(bits) if bit_width is None else bits

    mesh = jax.make_mesh((MESH_SIZE,), ("replica",), devices=jax.devices()[:MESH_SIZE])
    out = PartitionSpec(*[None] * dimension, "replica")
    with jax.enable_x64(bit_width == 64):
        mapped = jax.shard_map(body, mesh=mesh, in_specs=PartitionSpec(), out_specs=out, check_vma=False)
        whole = tuple(size * MESH_SIZE if i == dimension else size for i, size in enumerate(shape))
        expected = draw(whole)
        return jax.jit(mapped)(key), jax.random.key_data(expected) if bit_width is None else expected


@pytest.mark.daily(8)
@pytest.mark.parametrize("bit_width", [8, 16, 32, 64, None])
@pytest.mark.parametrize(("shape", "dimension"), [((3,), 0), ((2, 5), 0), ((2, 5), 1), ((3, 2, 4), 1)])
def test_the_parts_are_those_of_the_whole(shape, dimension, bit_width):
    found, expected = on_replicas(jax.random.key(5), shape, dimension, bit_width)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg"])
def test_other_generators_draw_the_whole(implementation):
    found, expected = on_replicas(jax.random.key(5, impl=implementation), (2, 5), 1, 32)
    np.testing.assert_array_equal(found, expected)


def test_so_does_a_threefry_without_parts():
    with jax.threefry_partitionable(False):
        found, expected = on_replicas(jax.random.key(5), (2, 5), 0, 32)
    np.testing.assert_array_equal(found, expected)


def test_entries_beyond_32_bits_have_two_words(monkeypatch):
    replicas, shape = 70_000, (4, 1 << 14)
    for replica in (0, 65_535, 65_536, 69_999):
        monkeypatch.setattr(jax.lax, "axis_index", lambda name, replica=replica: jnp.int32(replica))
        high, low = row_bits._counts(shape, 0, replicas)
        first = replica * shape[0] * shape[1]
        expected = first + np.arange(shape[0] * shape[1], dtype=np.uint64).reshape(shape)
        np.testing.assert_array_equal(np.asarray(high, np.uint64) << np.uint64(32) | np.asarray(low), expected)
    assert row_bits._counts(shape, 1, replicas) is None


def test_hashing_costs_what_a_draw_of_the_part_costs():
    mesh = jax.make_mesh((MESH_SIZE,), ("replica",), devices=jax.devices()[:MESH_SIZE])
    shape = (64, 128)

    def cost(draw):
        mapped = jax.shard_map(draw, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec("replica"))
        compiled = jax.jit(mapped).lower(jax.random.key(0)).compile()
        return compiled.cost_analysis()["flops"], compiled.memory_analysis().temp_size_in_bytes

    def own(key):
        return jax.random.bits(jax.random.fold_in(key, jax.lax.axis_index("replica")), shape)

    def of_rows(key):
        return row_bits.bits_of_rows(key, 32, shape, 0, MESH_SIZE, lambda whole: jax.random.bits(key, whole))

    for found, wanted in zip(cost(of_rows), cost(own), strict=True):
        assert found <= 1.1 * wanted
