"""Putting many values at once is putting each; a copy shares no memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import replicax as rx
from replicax.runtime import REPLICA_AXIS, replica_mesh
from replicax.runtime.transfer import placed_copy, put, put_all


def test_many_values_are_put_where_each_would_be():
    mesh = replica_mesh(jax.devices()[:2])
    whole, cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(REPLICA_AXIS))
    values = [np.arange(4, dtype=np.int32), jnp.ones((2, 3), jnp.bfloat16), jax.random.key(7), 3.0]
    shardings = [cut, whole, whole, whole]
    for found, value, sharding in zip(put_all(values, shardings), values, shardings, strict=True):
        expected = put(value, sharding)
        assert (found.sharding, found.dtype) == (sharding, expected.dtype)
        assert bool(jnp.all(found == expected))
    assert put_all([], []) == []


@pytest.mark.parametrize("spec", [(), ("a",), ("b",), (None, "b"), ("a", "b"), (("a", "b"),)], ids=str)
@pytest.mark.parametrize("kind", ["rows", "aligned", "columns", "strided", "broadcast", "whole", "placed"])
@pytest.mark.parametrize("small_bytes", [0, 1 << 16], ids=["large", "small"])
def test_a_copy_has_memory_of_its_own(spec, kind, small_bytes, monkeypatch):
    monkeypatch.setattr("replicax.runtime.transfer._SMALL_BYTES", small_bytes)
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    rows = np.arange(64, dtype=np.float32).reshape(8, 8)
    value = {
        "rows": lambda: rows.copy(),
        "aligned": lambda: np.asarray(jnp.asarray(rows)),  # JAX's own memory: it would go on using it
        "columns": lambda: np.asfortranarray(rows),
        "strided": lambda: np.repeat(rows, 2, axis=0)[::2],
        "broadcast": lambda: np.broadcast_to(rows[3], (8, 8)),
        "whole": lambda: jax.device_put(rows, jax.devices()[1]),
        "placed": lambda: jax.device_put(rows, sharding),
    }[kind]()
    expected = np.array(value, np.float32)
    copy = placed_copy(value, sharding)
    assert (copy.sharding, copy.dtype) == (sharding, np.float32)
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value[...] = -1
    copy = jax.jit(jnp.add, donate_argnums=0)(copy, 0.0)
    np.testing.assert_array_equal(copy, expected)
    if isinstance(value, jax.Array):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("dtype", ["bool", "int4", "int64", "bfloat16", "float8_e4m3fn", "float64", "complex64"])
def test_a_copy_has_the_dtype_that_devices_use(dtype):
    sharding = NamedSharding(replica_mesh(jax.devices()[:2]), PartitionSpec())
    value = np.array([0, 1, 1], dtype)
    copy = placed_copy(value, sharding)
    assert (copy.dtype, copy.weak_type) == (jnp.asarray(value).dtype, False)
    np.testing.assert_array_equal(np.asarray(copy, np.complex64), value.astype(np.complex64))


def test_a_copy_of_what_is_deleted():
    array = jnp.ones(2)
    array.delete()
    with pytest.raises(rx.errors.ArgumentError, match="memory has been given away"):
        placed_copy(array, NamedSharding(replica_mesh(jax.devices()[:2]), PartitionSpec()))


def test_bytes_in_another_order_are_refused_as_jax_refuses_them():
    with pytest.raises(TypeError, match=">f4"):
        placed_copy(np.ones(2, ">f4"), NamedSharding(replica_mesh(jax.devices()[:2]), PartitionSpec()))
