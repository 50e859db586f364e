"""Packing: values of one dtype joined into one buffer, so that they cost one transfer instead of many.

Joining copies them. Within a process that is worth it for small values only. Between processes each transfer waits for
the network, and for threads that wake up on both sides: there packs are large (`JOINED_BYTES`).

A pack has its price in the compiler, too. XLA makes machine code for each place in a pack from which something is read,
and code that it has made already serves again where another layer's arrays stand at the same place of their own pack.
So packs of a few arrays are compiled once for a whole deep network, while one large pack is compiled for as long as the
network is deep. Measured with 100 dense layers on 8 devices of one process: 0 arrays together, 8, 16, all 202: compiler
1.9 s, 1.9 s, 2.4 s, 7.8 s; a step 34 ms, 18 ms, 19 ms, 18 ms.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence

import jax
import jax.numpy as jnp

from replicax.compat.jax import vary, varying_axes

SMALL_VALUE_BYTES = 64 * 1024
JOINED_BYTES = 4 * 1024 * 1024
"""How many bytes a pack has between CPU processes. XLA makes all sums of a step there when the last of them is due.

Measured with two processes (milliseconds of a step; small values packed, and packs of 4 MiB): dense layers of
784-700-500-10 units 13.1 and 10.0, eight of 256 21.1 and 12.8, eight of 512 38.8 and 25.6, eight of 1024 114 and 118.
"""
_ARRAYS_PER_PACK = 8  # With more, a step of one process is no faster.


def arrays_per_pack() -> int | None:
    """Returns the most arrays that a pack holds here; None for no limit."""
    # Between processes each transfer waits for the network at every step; inside of one it costs next to nothing.
    return _ARRAYS_PER_PACK if jax.process_count() == 1 else None


@dataclasses.dataclass(frozen=True)
class Packing:
    """Which of a list's arrays travel together."""

    packs: tuple[tuple[int, ...], ...]  # for each buffer the positions of its arrays; every position comes once
    shapes: tuple[tuple[int, ...], ...]  # by position

    def pack(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns one buffer per pack: an array that is alone as it is, others joined into one of shape `(size,)`."""
        return [
            values[pack[0]] if len(pack) == 1 else _joined([values[i].reshape(-1) for i in pack]) for pack in self.packs
        ]

    def unpack(self, buffers: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the arrays of `buffers` in their own order and shapes: the inverse of `pack`."""
        values: dict[int, jax.Array] = {}
        for pack, buffer in zip(self.packs, buffers, strict=True):
            values.update(zip(pack, self._split(buffer, pack), strict=True))
        return [values[i] for i in range(len(self.shapes))]

    def _split(self, buffer: jax.Array, pack: tuple[int, ...]) -> Iterator[jax.Array]:
        if len(pack) == 1:
            yield buffer
            return
        start = 0
        for i in pack:
            size = math.prod(self.shapes[i])
            yield buffer[start : start + size].reshape(self.shapes[i])
            start += size


def _joined(parts: Sequence[jax.Array]) -> jax.Array:
    size = sum(part.size for part in parts)
    if jax.default_backend() != "cpu" or size * parts[0].dtype.itemsize <= SMALL_VALUE_BYTES:
        return jnp.concatenate(parts)
    # XLA's code for CPUs that concatenates 3.6 MB takes 25 ms now and then; that which writes into place 0.2.
    whole, start = jnp.zeros(size, parts[0].dtype), 0
    for axis in varying_axes(parts[0]):
        whole = vary(whole, axis)
    for part in parts:
        whole = jax.lax.dynamic_update_slice(whole, part, (start,))
        start += part.size
    return whole


def planned(values: Sequence[jax.Array], num_packs: int, bytes_per_pack: int = 0) -> Packing:
    """Plans packs: of so many bytes, or else so many of the small arrays of each dtype."""
    if bytes_per_pack > 0:
        return packs_by_bytes(values, bytes_per_pack)
    return packs_by_number(values, num_packs, arrays_per_pack())


def packs_by_bytes(values: Sequence[jax.Array], bytes_per_pack: int) -> Packing:
    """Plans packs of one dtype of up to `bytes_per_pack` bytes, filled in order; a larger array is a pack by itself."""
    if bytes_per_pack == 0:
        return _packing(([i] for i in range(len(values))), values)
    packs: list[list[int]] = []
    for positions in _alike(values, range(len(values))):
        room = -1
        for i in positions:
            if values[i].nbytes > room:
                packs.append([])
                room = bytes_per_pack
            packs[-1].append(i)
            room -= values[i].nbytes
    return _packing(packs, values)


def packs_by_number(values: Sequence[jax.Array], num_packs: int, arrays_per_pack: int | None = None) -> Packing:
    """Plans `num_packs` packs a dtype out of the small arrays; those above `SMALL_VALUE_BYTES` stay alone."""
    small = [i for i, value in enumerate(values) if num_packs > 0 and value.nbytes <= SMALL_VALUE_BYTES]
    chosen = set(small)
    packs = [[i] for i in range(len(values)) if i not in chosen]
    for positions in _alike(values, small):
        length = -(-len(positions) // num_packs)
        # This may ask for more packs.
        length = length if arrays_per_pack is None else min(length, arrays_per_pack)
        packs.extend(positions[start : start + length] for start in range(0, len(positions), length))
    return _packing(packs, values)


def _alike(values: Sequence[jax.Array], positions: Iterable[int]) -> list[list[int]]:
    """Returns `positions`, grouped by which of their values may be joined."""
    groups: dict[Hashable, list[int]] = {}
    for i in positions:
        # Joined arrays take on each other's varying axes, which would blur what JAX knows about them.
        groups.setdefault((values[i].dtype, varying_axes(values[i])), []).append(i)
    return list(groups.values())


def _packing(packs: Iterable[Iterable[int]], values: Sequence[jax.Array]) -> Packing:
    return Packing(tuple(tuple(pack) for pack in packs), tuple(value.shape for value in values))
