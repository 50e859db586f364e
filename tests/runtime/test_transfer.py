"""Putting many values at once is putting each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.runtime import REPLICA_AXIS, replica_mesh
from replicax.runtime.transfer import is_in_host_memory, put, put_all


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


def test_what_is_in_host_memory():
    array = jnp.ones(2)
    mesh = replica_mesh(jax.devices()[:2])
    assert is_in_host_memory(array)
    assert not is_in_host_memory(jax.device_put(array, NamedSharding(mesh, PartitionSpec())))
    assert not is_in_host_memory(jax.random.key(0))
