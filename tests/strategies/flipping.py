"""A bit that flips in one device's copy of a variable."""

from __future__ import annotations

import jax
import numpy as np

from replicax.contracts.variable_access import array_of, set_array


def flip(variable, device: int, bit: int) -> None:
    """Flips a bit of the copy, or the part, of a variable that a device has, by its number in the variable's mesh."""
    array = array_of(variable)
    shards = {shard.device: np.array(shard.data) for shard in array.addressable_shards}
    chosen = array.sharding.mesh.devices.flat[device]
    raw = shards[chosen].reshape(-1).view(np.uint8)
    raw[bit // 8] ^= 1 << bit % 8
    parts = [jax.device_put(part, where) for where, part in shards.items()]
    set_array(variable, jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts))
