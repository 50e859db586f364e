"""Checkpoints of TensorFlow 1's `Saver` in its first version: tables that hold the tensors themselves.

The empty key has the names, shapes, dtypes and slices of all tensors; the key of a slice has its values as a
`TensorProto`. All of a slice is one value of the table, so reading one takes its bytes about three times.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from replicax.compat.protocol_buffers import Message
from replicax.tensorflow.checkpoints.bundle import bounds_of, slice_key
from replicax.tensorflow.checkpoints.locating import glob_escaped
from replicax.tensorflow.checkpoints.table import Table
from replicax.tensorflow.checkpoints.tensors import DTYPES, Bounds, Part, TensorInfo, checked_shape, checked_slices

_STRINGS, _BOOLS = 8, 11
_FIXED: Mapping[int, str] = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}  # Fields of numbers of a fixed size.
_FIELDS: Mapping[int, int] = {1: 5, 2: 6, 7: 8, 8: 9, 9: 10, 10: 11, 14: 13, 18: 12, 19: 13, 22: 16, 23: 17}
_INTS = 7  # The field of the other dtypes.
_HALVES = (14, 19)  # Of bfloat16 and float16 the field has the bits.


class SaverV1:
    """The tensors of a checkpoint of version 1."""

    format = "saver_v1"

    def __init__(self, prefix: Path):
        shards = prefix.parent.glob(f"{glob_escaped(prefix.name)}-?????-of-?????")
        self._slices = dict[str, list[tuple[Bounds, Table]]]()
        self._dtypes = dict[str, int]()
        tensors = dict[str, TensorInfo]()
        for path in [prefix] if prefix.is_file() else _all_of(sorted(shards)):
            table = Table(path)
            for meta in Message(table.get(b"") or b"").messages(1):
                for described in meta.messages(1):
                    name, dtype = described.text(1), described.unsigned(3)
                    info = TensorInfo(name, _shape(described, 2), DTYPES.get(dtype), 0)
                    if tensors.setdefault(name, info) != info or self._dtypes.setdefault(name, dtype) != dtype:
                        raise ValueError(f"two files have different shapes or dtypes of {name!r}")
                    bounds = [tuple(bounds_of(extent) for extent in part.messages(1)) for part in described.messages(4)]
                    self._slices.setdefault(name, []).extend((bound, table) for bound in bounds)
        self._shapes = {
            name: checked_slices(name, info.shape, [bounds for bounds, _ in self._slices[name]])
            for name, info in tensors.items()
        }
        tensors = {name: dataclasses.replace(info, slices=len(self._slices[name])) for name, info in tensors.items()}
        if not tensors:
            raise ValueError("it lists no tensors")
        self.tensors: Mapping[str, TensorInfo] = tensors

    def parts(self, name: str) -> Iterator[Part]:
        """Yields the slices of a tensor."""
        dtype = self._dtypes[name]
        for (bounds, table), shape in zip(self._slices[name], self._shapes[name], strict=True):
            saved = table.get(slice_key(name.encode(), bounds))
            if saved is None:
                raise ValueError(f"its slice {bounds} is not there")
            values = [tensor for data in Message(saved).messages(2) for tensor in data.messages(3)]
            if len(values) != 1 or values[0].unsigned(1) not in (0, dtype):
                raise ValueError(f"its slice {bounds} is not as the list of tensors says")
            yield Part(tuple(start for start, _ in bounds), _values(values[0], dtype, shape))


def _all_of(shards: list[Path]) -> list[Path]:
    count = shards[0].name[-5:] if shards else ""
    expected = [f"-{i:05d}-of-{count}" for i in range(len(shards))]
    if not count.isdecimal() or int(count) != len(shards) or [shard.name[-15:] for shard in shards] != expected:
        raise ValueError(f"it has {len(shards)} files of {count or 0}")
    return shards


def _shape(message: Message, number: int) -> tuple[int, ...]:
    return checked_shape(tuple(dim.signed(1) for shape in message.messages(number) for dim in shape.messages(2)))


def _values(tensor: Message, number: int, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the values of a `TensorProto`, which has them in a field for their kind, or as bytes."""
    dtype, field = DTYPES[number], _FIELDS.get(number, _INTS)
    raw = b"".join(tensor.all_bytes(4) if 4 in tensor else [] if field == _STRINGS else tensor.all_bytes(field))
    if field == _STRINGS:
        found = np.empty(len(tensor.all_bytes(field)), object)
        found[:] = tensor.all_bytes(field)
    elif 4 in tensor:
        found = np.frombuffer(raw, dtype.newbyteorder("<")) if dtype.kind != "V" else np.frombuffer(raw, dtype)
    elif field in _FIXED:
        found = np.frombuffer(raw, _FIXED[field])
    else:
        found = _varints(raw)
        if number in _HALVES:
            found = found.astype(np.uint16).view(dtype)
        elif field == _BOOLS and found.size and int(found.max()) > 1:
            raise ValueError("a truth value is neither 0 nor 1")
    if found.size != math.prod(shape):
        raise ValueError(f"a slice of shape {shape} has {found.size} values")
    return found.astype(dtype, copy=False).reshape(shape)


def _varints(raw: bytes) -> np.ndarray:
    """Returns numbers of variable length, all at once: the lengths are where bytes are less than 128."""
    data = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    lengths = ends - starts + 1
    if data.size and (not ends.size or ends[-1] != data.size - 1 or int(lengths.max()) > 10):
        raise ValueError("a number in a list is cut off")
    values = np.zeros(ends.size, np.uint64)
    for i in range(int(lengths.max(initial=0))):
        longer = lengths > i
        values[longer] |= (data[starts[longer] + i].astype(np.uint64) & np.uint64(0x7F)) << np.uint64(7 * i)
    return values.view(np.int64)
