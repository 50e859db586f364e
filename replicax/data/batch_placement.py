"""Moves the batches of a step from host memory to the devices of the replicas."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from replicax.compat.jax import array_of_parts
from replicax.data.batch_split import SplitBatch
from replicax.data.receivers import Receivers
from replicax.errors import BatchError
from replicax.runtime import REPLICA_AXIS, mirrored_sharding, stacked_sharding
from replicax.typing import PyTree
from replicax.values import PerReplica

# XLA uses a host array on CPU devices without a copy if it is aligned to so many bytes.
_ALIGNMENT = 64
_NARROW = 4  # bytes of a dtype that devices have whether x64 is on or not
_aval = functools.lru_cache(maxsize=256)(jax.core.ShapedArray)


class Form(NamedTuple):
    """The form in which a loop gets the batches."""

    put: Callable[[SplitBatch, Receivers], PyTree]  # puts the parts of a batch on the devices of its receivers
    everywhere: bool  # whether every worker gets all rows of a step in which not all replicas take part


def _as_values(split: SplitBatch, receivers: Receivers) -> PyTree:
    mesh, bare = receivers.mesh_for(split.replicas), receivers.num_replicas == 1
    return place(split.parts, mesh, bare=bare, first=split.first, lasts=split.lasts)


def _as_rows(split: SplitBatch, receivers: Receivers) -> PyTree:
    if split.replicas == receivers.num_replicas:
        return place_rows(split.parts, receivers.mesh_for(split.replicas), first=split.first, lasts=split.lasts)
    return jax.tree.map(lambda leaf: _owned(leaf.reshape(-1, *leaf.shape[2:]), split.lasts), split.parts)


#: A `PerReplica` for each array; with one replica, the array.
VALUES = Form(_as_values, everywhere=False)
#: Arrays of global rows; in steps in which not all replicas take part, NumPy arrays.
ROWS = Form(_as_rows, everywhere=True)


def place(parts: PyTree, mesh: Mesh, *, bare: bool, first: int = 0, lasts: bool = False) -> PyTree:
    """Puts `parts`, of shape `(replicas, rows, ...)`, on devices, one each: as `PerReplica`, or as arrays if `bare`."""
    sharding = mirrored_sharding(mesh) if bare else stacked_sharding(mesh)  # bare: there is a single replica
    leaves, treedef = jax.tree.flatten(parts)
    if bare:
        placed: list[PyTree] = [_placed(leaf[0], leaf.shape[1], 0, sharding, lasts) for leaf in leaves]
    else:
        replicas = mesh.shape[REPLICA_AXIS]
        placed = [PerReplica(_placed(leaf, replicas, first, sharding, lasts)) for leaf in leaves]
    return jax.tree.unflatten(treedef, placed)


def place_rows(parts: PyTree, mesh: Mesh, *, first: int = 0, lasts: bool = False) -> PyTree:
    """Puts the parts of a step on the devices as one array of global rows for each leaf, sharded over the replicas."""

    def placed(leaf: np.ndarray) -> jax.Array:
        rows = leaf.reshape(-1, *leaf.shape[2:])
        per_replica = leaf.shape[1]
        length = mesh.shape[REPLICA_AXIS] * per_replica
        return _placed(rows, length, first * per_replica, stacked_sharding(mesh), lasts)

    return jax.tree.map(placed, parts)


def _placed(own: np.ndarray, length: int, first: int, sharding: NamedSharding, lasts: bool) -> jax.Array:
    """Returns a global array of `length` rows, of which this process has the rows `own`, from index `first` on."""
    given = _owned(own, lasts)
    shape = (length, *own.shape[1:])
    places = sharding.addressable_devices_indices_map(shape)
    # A worker may have rows of replicas between its own, too.
    rows = [index[0].indices(length) for index in places.values() if index is not None]
    parts = [given[start - first : stop - first] for start, stop, _ in rows]
    return array_of_parts(_aval(shape, given.dtype), sharding, list(places), parts)


def owned_copy(array: np.ndarray) -> np.ndarray:
    """Returns a copy of `array` in memory that nothing else writes to, in the dtype that devices use."""
    dtype = device_dtype(array.dtype)
    if array.dtype.kind in "iu" and dtype.itemsize < array.dtype.itemsize and array.size:
        limits = np.iinfo(dtype)
        for extreme in (array.max(), array.min()):
            if not limits.min <= int(extreme) <= limits.max:
                raise BatchError(
                    f"An integer is {extreme}, and devices hold {dtype} unless jax_enable_x64 is set, from "
                    f"{limits.min} to {limits.max}: it would become another number. Make such numbers smaller in a "
                    "`map`, for example by `% 2**31`, or leave them out."
                )
    copy = aligned(array.shape, dtype)
    try:
        with np.errstate(over="raise"):
            np.copyto(copy, array, casting="unsafe")
    except FloatingPointError:
        parts = np.stack([array.real, array.imag])
        raise BatchError(
            f"A number is as large as {abs(parts[np.isfinite(parts)]).max():g}, and devices hold {dtype} unless "
            f"jax_enable_x64 is set, up to {np.finfo(dtype).max:g}: it would become infinity. Scale or clip such "
            "numbers in a `map`, or leave them out."
        ) from None
    return copy


def _owned(array: np.ndarray, lasts: bool) -> np.ndarray:
    """Returns an array that JAX may keep: it uses the memory forever on a CPU device, elsewhere until it is copied."""
    # Unless an array lasts, the caller may overwrite it as soon as this returns.
    fits = lasts and array.dtype == device_dtype(array.dtype) and array.flags.c_contiguous
    return array if fits and array.ctypes.data % _ALIGNMENT == 0 else owned_copy(array)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Returns memory for an array that is on its way to a device."""
    size = math.prod(shape) * dtype.itemsize
    # Aligned, so that a CPU device uses it as it is: XLA copies what `array.copy()` returns once more, which is 7 times
    # slower for a batch of 200 MB.
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def device_dtype(dtype: np.dtype) -> np.dtype:
    """Returns the dtype in which devices hold values of `dtype`: native byte order, 32 bits unless x64 is on."""
    if dtype.itemsize <= _NARROW and dtype.isnative:
        return dtype
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype.newbyteorder("=")))
