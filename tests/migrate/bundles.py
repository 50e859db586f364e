"""Writes TensorFlow's files in Python, right ones and wrong ones with right checksums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from replicax.tensorflow.checkpoints.bundle import slice_key
from replicax.tensorflow.checkpoints.crc32c import crc32c
from replicax.tensorflow.checkpoints.table import MAGIC
from replicax.tensorflow.checkpoints.tensors import DTYPES

Field = int | bytes | str


def masked(checksum: int) -> int:
    """Returns a checksum as files store it."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Returns an unsigned number of variable length; a negative one as the two's complement of 64 bits."""
    value &= (1 << 64) - 1
    coded = bytearray()
    while value > 127:
        coded.append(value & 127 | 128)
        value >>= 7
    return bytes([*coded, value])


def message(*fields: tuple[int, Field], fixed32: int = 0) -> bytes:
    """Returns a protocol buffer; numbers are varints, but for the field `fixed32`."""
    data = b""
    for number, value in fields:
        if number == fixed32 and isinstance(value, int):
            data += varint(number << 3 | 5) + value.to_bytes(4, "little")
        elif isinstance(value, int):
            data += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            data += varint(number << 3 | 2) + varint(len(raw)) + raw
    return data


def block(entries: Mapping[bytes, bytes], restart_interval: int = 16) -> bytes:
    """Returns a block of a table, its keys compressed to what differs from the one before."""
    data, restarts, before = b"", list[int](), b""
    for i, (key, value) in enumerate(entries.items()):
        shared = 0
        if i % restart_interval:
            shared = next(
                (j for j, (a, b) in enumerate(zip(key, before, strict=False)) if a != b), min(len(key), len(before))
            )
        else:
            restarts.append(len(data))
        data += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        before = key
    restarts = restarts or [0]
    return data + b"".join(position.to_bytes(4, "little") for position in [*restarts, len(restarts)])


def table(
    entries: Mapping[bytes, bytes], per_block: int = 20, compress: Callable[[bytes], bytes] | None = None
) -> bytes:
    """Returns a table; `compress` is applied to each block."""
    data, index, keys = b"", dict[bytes, bytes](), sorted(entries)

    def add(content: bytes) -> bytes:
        nonlocal data
        stored = (content if compress is None else compress(content)) + bytes([compress is not None])
        handle = varint(len(data)) + varint(len(stored) - 1)
        data += stored + masked(crc32c(stored)).to_bytes(4, "little")
        return handle

    for begin in range(0, len(keys), per_block):
        some = keys[begin : begin + per_block]
        index[some[-1]] = add(block({key: entries[key] for key in some}))
    handles = add(block({})) + add(block(index, 1))
    return data + handles.ljust(40, b"\0") + MAGIC


def shape(lengths: tuple[int, ...]) -> bytes:
    """Returns a `TensorShapeProto`."""
    return message(*((2, message((1, length))) for length in lengths))


def entry(dtype: int, lengths: tuple[int, ...], shard: int, offset: int, data: bytes) -> bytes:
    """Returns a `BundleEntryProto`."""
    return message(
        (1, dtype), (2, shape(lengths)), (3, shard), (4, offset), (5, len(data)), (6, masked(crc32c(data))), fixed32=6
    )


def number_of(dtype: np.dtype) -> int:
    """Returns TensorFlow's number of a dtype."""
    return next(number for number, known in DTYPES.items() if known == dtype)


def write_bundle(
    prefix: Path,
    tensors: Mapping[str, np.ndarray],
    shards: int = 1,
    big_endian: bool = False,
    cuts: Mapping[str, tuple[int, ...]] | None = None,
    compress: Callable[[bytes], bytes] | None = None,
) -> None:
    """Writes a checkpoint; `cuts` are, for a partitioned tensor, the numbers of rows of its slices."""
    entries = {b"": message((1, shards), (2, int(big_endian)), (3, message((1, 1))))}
    files = [b""] * shards

    def add(key: bytes, values: np.ndarray) -> None:
        shard = len(entries) % shards
        swapped = (
            values.view(f"u{_unit(values.dtype)}").byteswap() if big_endian and _unit(values.dtype) > 1 else values
        )
        data = swapped.tobytes()
        entries[key] = entry(number_of(values.dtype), values.shape, shard, len(files[shard]), data)
        files[shard] += data

    for name, values in tensors.items():
        if name not in (cuts or {}):
            add(name.encode(), np.asarray(values))
            continue
        begin, slices = 0, list[bytes]()
        for rows in (cuts or {})[name]:
            bounds = ((begin, rows), *((0, -1) for _ in values.shape[1:]))
            add(slice_key(name.encode(), bounds), values[begin : begin + rows])
            slices.append(message((1, message((1, begin), (2, rows))), *((1, b"") for _ in values.shape[1:])))
            begin += rows
        parts = ((7, part) for part in slices)
        entries[name.encode()] = message((1, number_of(values.dtype)), (2, shape(values.shape)), *parts)
    Path(f"{prefix}.index").write_bytes(table(entries, compress=compress))
    for i, data in enumerate(files):
        Path(f"{prefix}.data-{i:05d}-of-{shards:05d}").write_bytes(data)


def _unit(dtype: np.dtype) -> int:
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
