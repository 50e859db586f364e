"""Tensors in a checkpoint of TensorFlow's: their names, shapes and dtypes, and the contract of what reads them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import ml_dtypes
import numpy as np

# TensorFlow's `DataType`. Numbers of fewer than eight bits take a byte each, in files too.
DTYPES: Mapping[int, np.dtype] = {
    number: np.dtype(dtype)
    for number, dtype in {
        1: np.float32,
        2: np.float64,
        3: np.int32,
        4: np.uint8,
        5: np.int16,
        6: np.int8,
        7: np.object_,  # Strings: `bytes`.
        8: np.complex64,
        9: np.int64,
        10: np.bool_,
        11: np.int8,  # The quantized numbers of TensorFlow 1, `qint8` and so on, have the same bits.
        12: np.uint8,
        13: np.int32,
        14: ml_dtypes.bfloat16,
        15: np.int16,
        16: np.uint16,
        17: np.uint16,
        18: np.complex128,
        19: np.float16,
        22: np.uint32,
        23: np.uint64,
        24: ml_dtypes.float8_e5m2,
        25: ml_dtypes.float8_e4m3fn,
        26: ml_dtypes.float8_e4m3fnuz,
        27: ml_dtypes.float8_e4m3b11fnuz,
        28: ml_dtypes.float8_e5m2fnuz,
        29: ml_dtypes.int4,
        30: ml_dtypes.uint4,
        31: ml_dtypes.int2,
        32: ml_dtypes.uint2,
    }.items()
}
_MOST_AXES = 64  # NumPy has no more.
_MOST_COMPARED = 10_000_000  # Pairs of slices that may overlap. TensorFlow cuts along one axis: then there are none.

#: Where a slice starts on each axis and how long it is; a length of -1 is all of the axis.
Bounds: TypeAlias = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class TensorInfo:
    """A tensor in a checkpoint.

    Attributes:
        name: Its name there, such as `"model/layer-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"`.
        shape: Its shape; of a partitioned variable that of the whole.
        dtype: Its dtype; that of Python objects for strings (`bytes`), and None for what only TensorFlow can read.
        stored: Number of bytes that its values take in the files.
        slices: Into how many slices the variable was partitioned.

    Example:
        >>> import numpy as np
        >>> from replicax.tensorflow.checkpoints import TensorInfo
        >>> TensorInfo("dense/kernel", (20, 3), np.dtype("float32"), stored=240).shape
        (20, 3)
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype | None
    stored: int
    slices: int = 1

    @property
    def nbytes(self) -> int:
        """Number of bytes of its values in memory; of strings, and of what cannot be read, in the files."""
        plain = self.dtype is not None and not self.dtype.hasobject
        return math.prod(self.shape) * self.dtype.itemsize if plain and self.dtype is not None else self.stored


class Part(NamedTuple):
    """A part of a tensor."""

    starts: tuple[int, ...]  # the index in the tensor of the part's first value
    values: np.ndarray


class Source(Protocol):
    """The contract of what reads files: one tensor at a time, in parts. Whatever is wrong is a `ValueError`."""

    format: str  # a word for it
    tensors: Mapping[str, TensorInfo]  # by name, in the order of the files

    def parts(self, name: str) -> Iterator[Part]:
        """Yields all parts of a tensor. Their values may be used when the last has been yielded: it was checked."""
        ...


def checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Checks a shape that a file states, and returns it."""
    size = math.prod(length for length in shape if length)
    if len(shape) > _MOST_AXES or any(length < 0 for length in shape) or size >= 1 << 59:
        raise ValueError(f"{list(shape)!r:.100} is not the shape of an array")
    return shape


def checked_slices(name: str, shape: tuple[int, ...], slices: Sequence[Bounds]) -> list[tuple[int, ...]]:
    """Returns the shapes of the slices into which a tensor was cut, which must cover it and not overlap."""
    shapes = list[tuple[int, ...]]()
    for bounds in slices:
        if len(bounds) != len(shape) or any(start + max(m, 0) > n for n, (start, m) in zip(shape, bounds, strict=True)):
            raise ValueError(f"{name!r} of shape {shape} has a slice {bounds} outside of it")
        shapes.append(tuple(n - start if m < 0 else m for n, (start, m) in zip(shape, bounds, strict=True)))
    size, count = math.prod(shape), sum(math.prod(part) for part in shapes)
    if count != size:
        raise ValueError(f"the slices of {name!r} have {count} values instead of {size}")
    if size and len(slices) > 1:
        starts = np.array([[start for start, _ in bounds] for bounds in slices], np.int64)
        problem = _overlap(starts, starts + np.array(shapes, np.int64), shape)
        if problem:
            raise ValueError(f"the slices of {name!r} {problem}")
    return shapes


def _overlap(starts: np.ndarray, stops: np.ndarray, shape: tuple[int, ...]) -> str:
    """Compares each slice with those that begin after it on the first axis that was cut, and before its end."""
    cut = int(np.argmax((stops - starts != np.array(shape)).any(axis=0)))
    order = np.argsort(starts[:, cut], kind="stable")
    starts, stops = starts[order], stops[order]
    behind = np.searchsorted(starts[:, cut], stops[:, cut])
    if int((behind - np.arange(len(starts))).sum()) > _MOST_COMPARED:
        return f"are {len(starts)}, cut along several axes: too many to compare"
    for i, end in enumerate(behind.tolist()):
        others = slice(i + 1, end)
        if ((starts[i] < stops[others]) & (starts[others] < stops[i])).all(axis=1).any():
            return "overlap"
    return ""
