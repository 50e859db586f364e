"""Reading a tensor piece by piece onto devices: each piece is read once, and only by processes that need it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

_ALIGNMENT = 64  # bytes; JAX uses memory of the host that begins at a multiple as it is, where the device is the host

#: The first and the last entry (exclusive) of a piece in each dimension.
Bounds = tuple[tuple[int, int], ...]


class Piece(NamedTuple):
    """A part of a tensor, and the memory of the host that takes its values."""

    bounds: Bounds
    values: np.ndarray  # of any dtype that the tensor's can be converted to


class Tensor(Protocol):
    """A tensor that lies somewhere, from where pieces of it can be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...  # in which it is stored

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Reads the values of pieces, which all lie in the same rows (entries of the first dimension)."""


def has_numbers(dtype: np.dtype) -> bool:
    """Returns whether values of a dtype are numbers or bools, which a variable can take: no strings, no raw bytes."""
    return dtype.kind in "fiubc" or bool(jax.dtypes.issubdtype(dtype, np.number))  # NumPy's kind of bfloat16 is "V".


class ArrayTensor(NamedTuple):
    """A tensor in the memory of the host, or mapped into it from a file."""

    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    def fill(self, pieces: Sequence[Piece]) -> None:
        for bounds, values in pieces:
            np.copyto(values, self.array[tuple(slice(*bound) for bound in bounds)], casting="unsafe")


def placed(tensor: Tensor, sharding: Sharding, dtype: np.dtype) -> jax.Array:
    """Returns a tensor in a sharding and dtype; no device gets more than its shard, and the host reads rows in turn."""
    # Each process reads the pieces of its own devices: of a mesh that spans several, all have equal tensors.
    shards = _shards(tensor.shape, sharding)
    rows: dict[tuple[int, int], list[Bounds]] = {}
    for bounds in shards:
        rows.setdefault(bounds[0] if bounds else (0, 1), []).append(bounds)
    arrays: dict[jax.Device, jax.Array] = {}
    for group in rows.values():
        pieces = [Piece(bounds, host_memory([stop - start for start, stop in bounds], dtype)) for bounds in group]
        tensor.fill(pieces)
        places = [(device, piece.values) for piece in pieces for device in shards[piece.bounds]]
        homes = [SingleDeviceSharding(device, memory_kind=sharding.memory_kind) for device, _ in places]
        on_devices = jax.device_put([values for _, values in places], homes)
        arrays.update(zip((device for device, _ in places), on_devices, strict=True))
    # Without the wait, the host would hold what is on its way to all devices, of all tensors.
    held = jax.block_until_ready([arrays[device] for device in sharding.addressable_devices])
    return jax.make_array_from_single_device_arrays(
        tensor.shape, sharding, held, dtype=held[0].dtype if held else dtype
    )


def _shards(shape: tuple[int, ...], sharding: Sharding) -> dict[Bounds, list[jax.Device]]:
    """Returns the devices of this process that hold each distinct piece."""
    found: dict[Bounds, list[jax.Device]] = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        bounds = tuple(part.indices(length)[:2] for part, length in zip(index or (), shape, strict=True))
        found.setdefault(bounds, []).append(device)
    return found


def host_memory(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Returns an array without values that JAX copies in any case."""
    # A buffer that JAX has not made cannot be updated in place: the first step would need memory for all variables
    # twice. JAX uses memory of the host as it is only if it is aligned, so this begins between two multiples.
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + 2 * _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT + _ALIGNMENT // 2
    return memory[start : start + size].view(dtype).reshape(shape)
