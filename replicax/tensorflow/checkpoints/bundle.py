"""TensorFlow's bundle format: `PREFIX.index`, a table of what is where, and `PREFIX.data-00000-of-00001` and so on.

`tf.train.Checkpoint`, `tf.compat.v1.train.Saver` (version 2), Keras's TensorFlow format and SavedModels use it. The
index has an entry for each tensor: dtype, shape, file, place and checksum. A partitioned variable has an entry that
lists its slices, and one for each slice, under a key made of the name and the bounds.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from io import BufferedReader
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from replicax.compat.protocol_buffers import Message, varint
from replicax.tensorflow.checkpoints.crc32c import crc32c, unmasked
from replicax.tensorflow.checkpoints.table import Table
from replicax.tensorflow.checkpoints.tensors import DTYPES, Bounds, Part, TensorInfo, checked_shape, checked_slices

_VERSION = 1
_CHUNK = 1 << 22  # Bytes of a tensor that are read and checked at a time.
_STRING = 7


class Entry(NamedTuple):
    """An entry of the index: a tensor or a slice of one, or a partitioned tensor without a place of its own."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    slices: tuple[Bounds, ...]


class Bundle:
    """The tensors of a bundle."""

    format = "bundle"

    def __init__(self, prefix: Path):
        self._prefix = prefix
        entries = dict(Table(Path(f"{prefix}.index")).items())
        header = Message(entries.pop(b"", b""))
        self._shards, order = header.unsigned(1), header.unsigned(2)
        if not self._shards or order > 1 or any(version.signed(2) > _VERSION for version in header.messages(3)):
            raise ValueError("the index has no header, or one of a later version of the format")
        self._order: Literal["little", "big"] = "big" if order else "little"
        self._entries = {key: _entry(value) for key, value in entries.items()}
        self._sizes = dict[int, int]()
        self.tensors: Mapping[str, TensorInfo] = {
            key.decode(): self._info(key, entry) for key, entry in self._entries.items() if not key.startswith(b"\0")
        }

    def parts(self, name: str) -> Iterator[Part]:
        """Yields the parts of a tensor: some rows, a slice or some rows of it, or all strings."""
        entry = self._entries[name.encode()]
        if not entry.slices:
            yield from self._values(entry, (0,) * len(entry.shape))
        for bounds in entry.slices:
            slice_entry = self._entries[slice_key(name.encode(), bounds)]
            yield from self._values(slice_entry, tuple(start for start, _ in bounds))

    def _info(self, key: bytes, entry: Entry) -> TensorInfo:
        """Returns what there is to say of a tensor, after comparing all that the index says of it with the files."""
        if not entry.slices:
            self._check(key, entry)
            return TensorInfo(key.decode(), entry.shape, DTYPES.get(entry.dtype), entry.size)
        stored = 0
        for bounds, shape in zip(entry.slices, checked_slices(key.decode(), entry.shape, entry.slices), strict=True):
            part = self._entries.get(slice_key(key, bounds))
            if part is None or part.slices or (part.dtype, part.shape) != (entry.dtype, shape):
                raise ValueError(f"{key!r} lacks its slice {bounds}, or that is not as it should be")
            self._check(key, part)
            stored += part.size
        return TensorInfo(key.decode(), entry.shape, DTYPES.get(entry.dtype), stored, len(entry.slices))

    def _check(self, key: bytes, entry: Entry) -> None:
        if entry.shard not in self._sizes:
            if entry.shard >= self._shards:
                raise ValueError(f"{key!r} is in file {entry.shard} of {self._shards}")
            path = self._file(entry.shard)
            if not path.is_file():
                raise ValueError(f"there is no {path.name}, in which {key!r} should be")
            self._sizes[entry.shard] = path.stat().st_size
        if entry.offset + entry.size > self._sizes[entry.shard]:
            raise ValueError(
                f"{key!r} should be at bytes {entry.offset} to {entry.offset + entry.size} of "
                f"{self._file(entry.shard).name}, which has {self._sizes[entry.shard]}"
            )
        dtype, count = DTYPES.get(entry.dtype), math.prod(entry.shape)
        needed = count if dtype is None or dtype.hasobject else count * dtype.itemsize
        # A string takes a byte or more, for its length.
        fits = entry.size == needed if dtype is not None and not dtype.hasobject else entry.size >= needed
        if not fits:
            raise ValueError(f"{key!r} of shape {entry.shape} and dtype {dtype} cannot have {entry.size} bytes")

    def _file(self, shard: int) -> Path:
        return Path(f"{self._prefix}.data-{shard:05d}-of-{self._shards:05d}")

    def _values(self, entry: Entry, starts: tuple[int, ...]) -> Iterator[Part]:
        path = self._file(entry.shard)
        with path.open("rb") as file:
            file.seek(entry.offset)
            if entry.dtype == _STRING:
                yield Part(starts, self._strings(file, entry))
                return
            yield from self._rows(file, entry, starts)

    def _rows(self, file: BufferedReader, entry: Entry, starts: tuple[int, ...]) -> Iterator[Part]:
        dtype, shape = DTYPES[entry.dtype], entry.shape or (1,)
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        rows = max(1, _CHUNK // max(row_bytes, 1))
        checksum = 0
        for row in range(0, shape[0] if row_bytes else 0, rows):
            count = min(rows, shape[0] - row)
            raw = np.empty(count * row_bytes, np.uint8)
            _fill(file, raw)
            checksum = crc32c(raw, checksum)
            values = self._as(raw, dtype).reshape((count, *shape[1:]) if entry.shape else ())
            yield Part((starts[0] + row, *starts[1:]) if starts else (), values)
        self._compare(file, entry, checksum)

    def _as(self, raw: np.ndarray, dtype: np.dtype) -> np.ndarray:
        if dtype.kind == "b" and raw.size and int(raw.max()) > 1:
            raise ValueError("a truth value is neither 0 nor 1")
        if self._order == "big" and dtype.itemsize > 1:
            unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
            raw.view(f"u{unit}").byteswap(inplace=True)
        return raw.view(dtype)

    def _strings(self, file: BufferedReader, entry: Entry) -> np.ndarray:
        """Reads the lengths (as varints), a checksum of them (as numbers of 4 or 8 bytes), and the strings."""
        if not entry.size:
            return np.empty(entry.shape, object)
        raw = np.empty(entry.size, np.uint8)
        _fill(file, raw)
        data, position, lengths = raw.tobytes(), 0, list[int]()
        for _ in range(math.prod(entry.shape)):
            length, position = varint(data, position)
            lengths.append(length)
        order = self._order
        checksum = crc32c(b"".join(n.to_bytes(4 if n < 1 << 32 else 8, order) for n in lengths))
        stored = data[position : position + 4]
        position += 4
        if sum(lengths) + position != len(data) or unmasked(int.from_bytes(stored, order)) != checksum:
            raise ValueError(f"the lengths of the strings at byte {entry.offset} are not as they were written")
        self._compare(file, entry, crc32c(data[position:], crc32c(stored, checksum)))
        values = np.empty(len(lengths), object)
        for i, length in enumerate(lengths):
            values[i] = data[position : position + length]
            position += length
        return values.reshape(entry.shape)

    def _compare(self, file: BufferedReader, entry: Entry, checksum: int) -> None:
        if checksum != entry.checksum:
            raise ValueError(
                f"bytes {entry.offset} to {entry.offset + entry.size} of {os.path.basename(file.name)} have another "
                "checksum than when they were written"
            )


def slice_key(name: bytes, bounds: Bounds) -> bytes:
    """Returns the key of a slice: the name and the bounds, coded such that keys sort as what they stand for."""
    axes = bytes([1, len(bounds)]) if bounds else b"\0"
    numbers = b"".join(_ordered(number) for bound in bounds for number in bound)
    return b"\0" + name.replace(b"\0", b"\0\xff") + b"\0\x01" + axes + numbers


def _ordered(number: int) -> bytes:
    """Returns a number with the ones that stand for its length in front, as UTF-8 has it; inverted if negative."""
    value = ~number if number < 0 else number
    length = value.bit_length() // 7 + 1
    coded = (value | ((1 << length) - 1) << 7 * length).to_bytes(length, "big")
    return bytes(byte ^ 0xFF for byte in coded) if number < 0 else coded


def _entry(value: bytes) -> Entry:
    message = Message(value)
    shape = tuple(dim.signed(1) for shape in message.messages(2) for dim in shape.messages(2))
    slices = tuple(tuple(bounds_of(extent) for extent in part.messages(1)) for part in message.messages(7))
    offset, size = message.signed(4), message.signed(5)
    if offset < 0 or size < 0:
        raise ValueError(f"an entry has {size} bytes at byte {offset}")
    checksum = unmasked(message.unsigned(6))
    return Entry(message.unsigned(1), checked_shape(shape), message.unsigned(3), offset, size, checksum, slices)


def bounds_of(extent: Message) -> tuple[int, int]:
    """Returns where a slice starts on an axis and how long it is; -1 is all of the axis."""
    start, length = extent.signed(1), extent.signed(2) if 2 in extent else -1
    if start < 0 or (2 in extent and length < 0):
        raise ValueError(f"a slice starts at {start} and has {length} values")
    return start, length


def _fill(file: BufferedReader, raw: np.ndarray) -> None:
    begin = file.tell()
    if file.readinto(raw.data) != raw.size:
        raise ValueError(f"{os.path.basename(file.name)} ends before byte {begin + raw.size}")
