"""First values come onto the devices as copies, and no program is compiled for it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from replicax.runtime import replica_mesh
from replicax.runtime.transfer import placed_copies, placed_copy


@pytest.fixture
def whole():
    return NamedSharding(replica_mesh(jax.devices()[:2]), PartitionSpec())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_a_copy_shares_no_buffer_with_the_value(whole, dtype):
    values = [jnp.ones((3, 2), dtype), jax.device_put(jnp.ones(5, dtype), whole)]
    copies = placed_copies(values, [whole, whole])
    for value, copy in zip(values, copies, strict=True):
        assert (copy.sharding, copy.dtype) == (whole, value.dtype)
        np.testing.assert_array_equal(copy, value)
        copy.delete()
        np.testing.assert_array_equal(value, np.ones(value.shape, dtype))


def test_a_numpy_array_that_is_changed_later_does_not_change_the_copy(whole):
    array = np.ones((64, 64), np.float32)
    copy = placed_copy(array, whole)
    array[:] = 2
    np.testing.assert_array_equal(copy, np.ones((64, 64)))


def test_random_keys_are_copied(whole):
    copy = placed_copy(jax.random.key(3), whole)
    assert bool(copy == jax.random.key(3))


def test_a_copy_is_updated_in_place_and_the_value_stays(whole):
    value = jnp.arange(1024.0)
    copy = placed_copy(value, whole)
    add = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=whole)
    np.testing.assert_array_equal(add(copy), np.arange(1024.0) + 1)
    assert copy.is_deleted()
    np.testing.assert_array_equal(value, np.arange(1024.0))


def test_first_values_of_new_shapes_compile_nothing(whole):
    compiled = []
    values = [jnp.asarray(np.ones((7, 11 + i), np.float32)) for i in range(3)]

    def note(event, duration, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        placed_copies(values, [whole] * 3)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert compiled == []
