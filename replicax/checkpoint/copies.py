"""Copies of arrays, which are written while the training goes on."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from replicax.checkpoint.encoding import SavedArray
from replicax.runtime.transfer import HOST_MEMORY, check_not_deleted, copy_of


def copied(arrays: Mapping[str, SavedArray]) -> dict[str, SavedArray]:
    """Returns copies of arrays, since training overwrites the buffers of its state in place."""
    return {name: _copy(name, array) for name, array in arrays.items()}


def _copy(name: str, array: SavedArray) -> SavedArray:
    if not isinstance(array, jax.Array):
        return np.array(array)
    check_not_deleted([array], repr(name))
    device: jax.Device = next(iter(array.sharding.addressable_devices))
    beside = HOST_MEMORY in {memory.kind for memory in device.addressable_memories()}
    if device.platform != "cpu" and beside and array.sharding.memory_kind != HOST_MEMORY:
        # The memory of the device may have no room for another copy.
        return jax.device_put(array, array.sharding.with_memory_kind(HOST_MEMORY))
    return copy_of(array)
