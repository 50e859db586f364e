"""Partitioners decide into how many shards a variable is split over the servers, with TensorFlow's arithmetic.

Only the first dimension is ever sharded. Shard sizes are those of TensorFlow's "div" strategy: of `d` rows in `n`
shards the first `d % n` have one row more than the others.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import jax
import numpy as np

from replicax.checks import checked_int, is_int
from replicax.errors import ArgumentError, VariableError

_DEFAULT_MIN_BYTES = 256 << 10


class Partitioner(abc.ABC):
    """Decides into how many shards a new variable is split.

    Example:
        >>> import numpy as np
        >>> rx.MinSizePartitioner(min_shard_bytes=1 << 10, max_shards=4)((1024, 8), np.float32)
        [4, 1]
    """

    @abc.abstractmethod
    def __call__(self, shape: Sequence[int], dtype: jax.typing.DTypeLike, axis: int = 0) -> list[int]:
        """Returns the number of shards along each dimension: 1 for all of them but `axis`."""


class FixedShardsPartitioner(Partitioner):
    """Splits every variable into the same number of shards, or one per row if it has fewer rows.

    Args:
        num_shards: How many.

    Raises:
        ArgumentError: `num_shards` is not positive.

    Example:
        >>> FixedShardsPartitioner(2)((10, 3), "float32")
        [2, 1]
    """

    def __init__(self, num_shards: int):
        self._num_shards = checked_int("num_shards", num_shards, least=1)

    def __call__(self, shape: Sequence[int], dtype: jax.typing.DTypeLike, axis: int = 0) -> list[int]:
        del dtype
        return _parts(shape, axis, self._num_shards)


class MinSizePartitioner(Partitioner):
    """Splits a variable into shards of about a minimum size.

    Their number is rounded up, so that shards may be somewhat smaller than `min_shard_bytes`.

    Args:
        min_shard_bytes: The size, in bytes.
        max_shards: The largest number of shards; with the default of 1 nothing is sharded.
        bytes_per_string: Bytes that an entry of a string dtype counts for.

    Raises:
        ArgumentError: An argument is not positive.

    Example:
        >>> MinSizePartitioner(min_shard_bytes=9, max_shards=10)((6,), "float32")
        [3]
    """

    def __init__(self, min_shard_bytes: int = _DEFAULT_MIN_BYTES, max_shards: int = 1, bytes_per_string: int = 16):
        self._min_shard_bytes = checked_int("min_shard_bytes", min_shard_bytes, least=1)
        self._max_shards = checked_int("max_shards", max_shards, least=1)
        self._bytes_per_string = checked_int("bytes_per_string", bytes_per_string, least=1)

    def __call__(self, shape: Sequence[int], dtype: jax.typing.DTypeLike, axis: int = 0) -> list[int]:
        total = math.prod(shape) * _entry_bytes(dtype, self._bytes_per_string)
        wanted = -(-total // self._min_shard_bytes)
        return _parts(shape, axis, max(1, min(self._max_shards, wanted)))


class MaxSizePartitioner(Partitioner):
    """Splits a variable into as few shards as keep each below a maximum size; a row is never split.

    Args:
        max_shard_bytes: The size, in bytes.
        max_shards: The largest number of shards, even if they are larger then; None or 0 for any number.
        bytes_per_string: Bytes that an entry of a string dtype counts for.

    Raises:
        ArgumentError: `max_shard_bytes` or `bytes_per_string` is not positive, or `max_shards` negative.

    Example:
        >>> MaxSizePartitioner(max_shard_bytes=10)((6, 1), "float32")
        [3, 1]
    """

    def __init__(self, max_shard_bytes: int, max_shards: int | None = None, bytes_per_string: int = 16):
        self._max_shard_bytes = checked_int("max_shard_bytes", max_shard_bytes, least=1)
        self._max_shards = checked_int("max_shards", max_shards, least=1) if max_shards else None
        self._bytes_per_string = checked_int("bytes_per_string", bytes_per_string, least=1)

    def __call__(self, shape: Sequence[int], dtype: jax.typing.DTypeLike, axis: int = 0) -> list[int]:
        _check_rank(shape)
        rows = shape[axis]
        row_bytes = math.prod(shape) // max(rows, 1) * _entry_bytes(dtype, self._bytes_per_string)
        rows_per_shard = max(1, self._max_shard_bytes // max(row_bytes, 1))
        wanted = -(-rows // rows_per_shard)
        return _parts(shape, axis, min(wanted, self._max_shards or wanted))


def shard_bounds(rows: int, parts: int) -> list[tuple[int, int]]:
    """Returns where each shard begins and ends.

    Example:
        >>> shard_bounds(10, 3)
        [(0, 4), (4, 7), (7, 10)]
    """
    least, more = divmod(rows, parts)
    stops = [least * (i + 1) + min(i + 1, more) for i in range(parts)]
    return list(zip([0, *stops[:-1]], stops, strict=True))


def count_shards(
    partitioner: Callable[..., list[int]] | None, shape: Sequence[int], dtype: jax.typing.DTypeLike, name: str
) -> int:
    """Returns into how many shards a partitioner, any callable with its signature, splits a variable; 1 without one."""
    if partitioner is None or not shape:
        return 1
    parts = partitioner(shape=tuple(shape), dtype=np.dtype(dtype))
    if not _shards_rows_only(parts, len(shape)):
        form = ", ".join(["n", *["1"] * (len(shape) - 1)])
        raise VariableError(
            f"The partitioner returned {parts!r} for variable {name!r} of shape {tuple(shape)}. A variable is "
            f"sharded along its first dimension only: return [{form}] for n shards, with n = 1 for none."
        )
    return max(1, min(int(parts[0]), shape[0]))


def _shards_rows_only(parts: object, rank: int) -> TypeGuard[Sequence[int]]:
    if not isinstance(parts, (list, tuple)) or len(parts) != rank:
        return False
    return all(map(is_int, parts)) and parts[0] >= 1 and all(count == 1 for count in parts[1:])


def _parts(shape: Sequence[int], axis: int, wanted: int) -> list[int]:
    _check_rank(shape)
    parts = [1] * len(shape)
    parts[axis] = min(wanted, max(shape[axis], 1))
    return parts


def _check_rank(shape: Sequence[int]) -> None:
    if not len(shape):
        raise ArgumentError("A scalar has no dimension along which it could be sharded.")


def _entry_bytes(dtype: jax.typing.DTypeLike, bytes_per_string: int) -> int:
    kind = np.dtype(dtype)
    return bytes_per_string if kind.kind in "OSU" else kind.itemsize
