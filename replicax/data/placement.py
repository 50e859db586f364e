"""Placement: from host memory to the replicas' devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from replicax.runtime import mirrored_sharding, stacked_sharding
from replicax.runtime.transfer import put, spans_processes
from replicax.values import PerReplica

_ALIGNMENT = (
    64  # XLA uses a host array on CPU devices as it is if it is aligned to so many bytes; else it copies again.
)


def place(parts: Any, mesh: Mesh, *, bare: bool) -> Any:
    """Puts the parts of a step on the devices of `mesh`, part i on device i.

    The values are the device's own: the memory of `parts` may be overwritten as soon as this returns. (JAX itself keeps
    using a NumPy array's memory: for ever on a CPU device, whatever `may_alias` says, and until the transfer is done on
    others.)

    Args:
        parts: Nest of host arrays of shape `(replicas, rows, ...)`.
        mesh: One device a replica.
        bare: For a strategy with a single replica: elements are plain arrays of shape `(rows, ...)`.

    Returns:
        Nest of `PerReplica`, or of arrays if `bare`. Dtypes are JAX's: float64 becomes float32 unless x64 is on.
    """
    leaves, treedef = jax.tree.flatten(parts)
    owned = [owned_copy(leaf[0] if bare else leaf) for leaf in leaves]
    sharding = mirrored_sharding(mesh) if bare else stacked_sharding(mesh)
    if spans_processes(sharding):
        placed = [put(leaf, sharding) for leaf in owned]
    else:
        placed = jax.device_put(owned, sharding)
    return jax.tree.unflatten(treedef, placed if bare else [PerReplica(array) for array in placed])


def owned_copy(array: np.ndarray) -> np.ndarray:
    """Returns a copy of `array` in memory that nobody else writes to, in the dtype that devices use.

    This is the only copy on its way to a CPU device (7 times faster for a batch of 200 MB than `array.copy()`, whose
    memory XLA copies once more because it is not aligned).
    """
    dtype = device_dtype(array.dtype)
    size = array.size * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + size].view(dtype).reshape(array.shape)
    np.copyto(copy, array, casting="unsafe")
    return copy


def device_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which devices hold values of `dtype`: native byte order, 32 bits unless x64 is on."""
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))
