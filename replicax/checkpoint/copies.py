"""Copies of arrays, to be written while the training goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np


def copied(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns copies of arrays: training overwrites the buffers of its state in place."""
    return {name: _copy(array) for name, array in arrays.items()}


def _copy(array: Any) -> Any:
    if not isinstance(array, jax.Array):
        return np.array(array)
    device: Any = next(iter(array.sharding.addressable_devices))
    if device.platform != "cpu" and "pinned_host" in {memory.kind for memory in device.addressable_memories()}:
        # Not to the device's memory, where there may be no room for another copy.
        return jax.device_put(array, array.sharding.with_memory_kind("pinned_host"))
    return jax.numpy.copy(array)
