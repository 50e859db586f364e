"""LevelDB's table format, in which TensorFlow writes the index of a checkpoint.

A table is a file of blocks, each followed by a byte (how it is compressed) and the masked CRC-32C of both. The footer
names the index block; it has the place of each data block, under a key not less than those in the block. Keys are
sorted, and an entry stores only what follows the bytes that it shares with the key before.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from pathlib import Path

from replicax.compat.protocol_buffers import varint
from replicax.tensorflow.checkpoints.crc32c import crc32c, unmasked

MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
_FOOTER, _TRAILER = 48, 5
_RAW, _SNAPPY = 0, 1
_LONGEST_KEYS = 64  # Times the block: every 16th key is complete, so that prefixes cannot save more.


class Table:
    """A table; whatever is wrong with it is a `ValueError` that says what and where."""

    def __init__(self, path: Path):
        self._path = path
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _FOOTER, 0))
            footer = file.read(_FOOTER)
        if len(footer) < _FOOTER or not footer.endswith(MAGIC):
            raise ValueError(f"no table ends at byte {size}: the file was cut off, or is another one")
        self._end = size - _FOOTER
        meta, position = _handle(footer, 0)
        index, _ = _handle(footer, position)
        list(_entries(self._block(*meta)))
        self._keys, self._places = list[bytes](), list[tuple[int, int]]()
        for key, value in _entries(self._block(*index)):
            self._keys.append(key)
            self._places.append(_handle(value, 0)[0])

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Yields keys and values in order, a block at a time in memory."""
        last = None
        for bound, place in zip(self._keys, self._places, strict=True):
            for key, value in _entries(self._block(*place)):
                if (last is not None and key <= last) or key > bound:
                    raise ValueError(f"the key {key!r:.100} in the block at byte {place[0]} is not in order")
                last = key
                yield key, value

    def get(self, key: bytes) -> bytes | None:
        """Returns the value of a key, or None."""
        i = bisect.bisect_left(self._keys, key)
        return dict(_entries(self._block(*self._places[i]))).get(key) if i < len(self._keys) else None

    def _block(self, offset: int, size: int) -> bytes:
        if offset + size + _TRAILER > self._end:
            raise ValueError(f"a block of {size} bytes at byte {offset} does not fit into the {self._end} bytes")
        with self._path.open("rb") as file:
            file.seek(offset)
            stored = file.read(size + _TRAILER)
        checksum = int.from_bytes(stored[-4:], "little")
        if len(stored) < size + _TRAILER or crc32c(stored[:-4]) != unmasked(checksum):
            raise ValueError(f"the block at byte {offset} has another checksum than when it was written")
        if stored[size] == _SNAPPY:
            return uncompressed(stored[:size])
        if stored[size] != _RAW:
            raise ValueError(f"the block at byte {offset} is compressed in an unknown way, {stored[size]}")
        return stored[:size]


def uncompressed(data: bytes) -> bytes:
    """Returns what Snappy compressed (its raw format, without frames)."""
    length, position = varint(data, 0)
    result = bytearray()
    while position < len(data):
        tag, start = data[position], position
        kind, size = tag & 3, (tag >> 2) + 1
        position += 1
        if kind == 0:  # Bytes as they are.
            if size > 60:
                extra = size - 60
                size = int.from_bytes(data[position : position + extra], "little") + 1
                position += extra
            part = data[position : position + size]
            position += size
        else:  # Bytes that came before; they may reach into what is being copied.
            extra = (1, 2, 4)[kind - 1]
            offset = int.from_bytes(data[position : position + extra], "little")
            position += extra
            if kind == 1:
                size, offset = (tag >> 2 & 7) + 4, offset | tag >> 5 << 8
            if not 0 < offset <= len(result):
                raise ValueError(f"a compressed block refers {offset} bytes back at byte {start}")
            seen = result[-offset:] if offset >= size else bytes(result[-offset:]) * (size // offset + 1)
            part = bytes(seen[:size])
        if position > len(data) or len(result) + size > length:
            raise ValueError(f"a compressed block is damaged at byte {start}")
        result += part
    if len(result) != length:
        raise ValueError(f"a compressed block has {len(result)} bytes instead of {length}")
    return bytes(result)


def _handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    offset, position = varint(data, position)
    size, position = varint(data, position)
    return (offset, size), position


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 - 4 * restarts
    if len(block) < 4 or end < 0:
        raise ValueError(f"a block of {len(block)} bytes cannot have {restarts} restarts")
    key, position, key_bytes = b"", 0, 0
    while position < end:
        start = position
        shared, position = varint(block, position)
        own, position = varint(block, position)
        size, position = varint(block, position)
        if shared > len(key) or position + own + size > end:
            raise ValueError(f"an entry at byte {start} of a block is longer than the block, or than the key before")
        previous, key = key, key[:shared] + block[position : position + own]
        key_bytes += len(key)
        if (start and key <= previous) or key_bytes > _LONGEST_KEYS * len(block):
            raise ValueError(f"the key at byte {start} of a block is not in order, or far too long")
        yield key, block[position + own : position + own + size]
        position += own + size
