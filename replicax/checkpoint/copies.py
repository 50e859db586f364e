"""Copies of arrays, which are written while the training goes on."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from replicax.checkpoint.encoding import SavedArray


def copied(arrays: Mapping[str, SavedArray]) -> dict[str, SavedArray]:
    """Returns copies of arrays, since training overwrites the buffers of its state in place."""
    return {name: _copy(array) for name, array in arrays.items()}


def _copy(array: SavedArray) -> SavedArray:
    if not isinstance(array, jax.Array):
        return np.array(array)
    device: jax.Device = next(iter(array.sharding.addressable_devices))
    if device.platform != "cpu" and "pinned_host" in {memory.kind for memory in device.addressable_memories()}:
        # The memory of the device may have no room for another copy.
        return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))
    return jax.numpy.copy(array)
