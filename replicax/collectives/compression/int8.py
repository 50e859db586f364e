"""Gradients as bytes: 8 bits for each number, and for each block of numbers a scale."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.checks import checked_int
from replicax.collectives.compression.contract import (
    Compression,
    Memory,
    MemoryKind,
    Reducing,
)
from replicax.collectives.packing import planned
from replicax.errors import ArgumentError

_LARGEST = 127  # -128 is left out, so that the scale is the same on both sides of 0.


@dataclasses.dataclass(frozen=True)
class Int8(Compression):
    """Sends each number of a gradient as 8 bits: about a quarter of the bytes of float32.

    The largest absolute value in a block of `block_size` numbers sets the block's scale. A sum of bytes would overflow,
    so they travel in two steps. Each replica gets its part of the buffer from all others (all-to-all), adds up in
    float32, rounds the sum to bytes again, and all get all parts (all-gather). Each replica sends `2 (N-1)/N` bytes for
    each number, as an all-reduce of bytes would, and the scales: 4 bytes for each block.

    Nothing is lost by rounding: each replica adds the rest to its next gradient (error feedback). Over the steps as
    much arrives as was computed, and training converges as if nothing had been rounded.

    Args:
        block_size: How many numbers share a scale.
        min_size: Gradients with fewer elements (biases, scales of normalization) travel as they are.
        error_feedback: Whether the rounding error is kept for the next step: float32 memory of the size of the
            gradients on each replica. Without, nothing is remembered, and each step rounds anew.

    Raises:
        ArgumentError: An argument has a wrong type or value.

    References:
        F. Seide et al., "1-Bit Stochastic Gradient Descent and its Application to Data-Parallel Distributed Training of
        Speech DNNs", Interspeech 2014. D. Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization
        and Encoding", 2017 (arXiv:1610.02132), for the scales. S. P. Karimireddy et al., "Error Feedback Fixes SignSGD
        and other Gradient Compression Schemes", 2019 (arXiv:1901.09847). H. Tang et al., "1-bit Adam", 2021
        (arXiv:2102.02888), for the two steps.

    Example:
        >>> Int8(block_size=128)
        Int8(block_size=128, min_size=1024, error_feedback=True)
    """

    block_size: int = 256
    min_size: int = 1024
    error_feedback: bool = True

    def __post_init__(self) -> None:
        checked_int("block_size", self.block_size, least=1)
        checked_int("min_size", self.min_size)
        if not isinstance(self.error_feedback, bool):
            raise ArgumentError(f"`error_feedback` must be True or False, got {self.error_feedback!r:.100}.")

    @property
    def has_memory(self) -> bool:
        return self.error_feedback

    def compresses(self, shape: tuple[int, ...], dtype: jax.typing.DTypeLike) -> bool:
        """Returns whether an array of this shape and dtype travels as bytes."""
        return bool(jnp.issubdtype(dtype, jnp.inexact)) and 0 < math.prod(shape) >= self.min_size

    def memory_of(self, shape: tuple[int, ...], dtype: np.dtype, number: int) -> dict[str, MemoryKind]:
        return {"error": MemoryKind(shape, dtype, True, lambda: np.zeros(shape, dtype))} if self.error_feedback else {}

    def sums(
        self, values: Sequence[jax.Array], memory: Sequence[Memory], how: Reducing
    ) -> tuple[list[jax.Array], list[Memory]]:
        outgoing = [
            _numbers(value + kept["error"] if kept else value) for value, kept in zip(values, memory, strict=True)
        ]
        packing = planned(outgoing, 1, how.bytes_per_pack)
        pairs = [sum_as_bytes(buffer.reshape(-1), self.block_size, how) for buffer in packing.pack(outgoing)]
        totals = packing.unpack([total for total, _ in pairs])
        errors = packing.unpack([error for _, error in pairs])
        new: list[Memory] = [
            {"error": _as_like(error, value)} if kept else {}
            for error, value, kept in zip(errors, values, memory, strict=True)
        ]
        return [_as_like(total, value) for total, value in zip(totals, values, strict=True)], new


def sum_as_bytes(buffer: jax.Array, block_size: int, how: Reducing) -> tuple[jax.Array, jax.Array]:
    """Sums a buffer of shape `(size,)` over the replicas, which send bytes; returns what this one has left out, too."""
    # The sum is equal on all replicas; with what all of them have left out it is exact. A block that holds NaN or
    # infinity anywhere is NaN everywhere.
    replicas, replica = how.num_replicas, lax.axis_index(how.axis_name)
    parts = _blocks(buffer, replicas, block_size)
    rounded, scales = _rounded(parts)
    theirs = lax.all_to_all(_message(rounded, scales), how.axis_name, 0, 0, tiled=True)
    # A replica's own part has not travelled: it is added as it is.
    is_own = (jnp.arange(replicas) == replica)[:, None, None]
    terms = jnp.where(is_own, parts, _read(theirs, parts.dtype))
    # One by one: XLA's sum over a short dimension takes five times as long on CPUs.
    total = functools.reduce(jnp.add, [terms[i] for i in range(replicas)])
    rounded_total, scale_of_total = _rounded(total)
    message = _message(rounded_total[None], scale_of_total[None])
    gathered = lax.all_gather(message, how.axis_name, axis=0, tiled=True, to="invarying")
    left_of_total = (total - _restored(rounded_total, scale_of_total)).reshape(-1)
    errors = (parts - _restored(rounded, scales)).reshape(-1)
    errors = lax.dynamic_update_slice(errors, left_of_total, (replica * left_of_total.size,))
    return _read(gathered, parts.dtype).reshape(-1)[: buffer.size], errors[: buffer.size]


def _blocks(buffer: jax.Array, parts: int, block_size: int) -> jax.Array:
    """Returns a buffer as `(parts, blocks, block)`, filled up with zeros; blocks are no larger than they need be."""
    length = -(-buffer.size // parts)
    blocks = -(-length // block_size)
    block = -(-length // blocks)
    return jnp.pad(buffer, (0, parts * blocks * block - buffer.size)).reshape(parts, blocks, block)


def _rounded(numbers: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns numbers as bytes and the scales of their blocks, shapes `(..., blocks, block)` and `(..., blocks)`."""
    largest = jnp.max(jnp.abs(numbers), axis=-1)
    scales = jnp.where(jnp.isfinite(largest), largest / _LARGEST, jnp.nan)
    steps = jnp.where(scales > 0, 1 / scales, 0)[..., None]
    rounded = jnp.clip(jnp.round(numbers * steps), -_LARGEST, _LARGEST)
    return rounded.astype(jnp.int8), scales


def _restored(rounded: jax.Array, scales: jax.Array) -> jax.Array:
    return rounded.astype(scales.dtype) * scales[..., None]


def _message(rounded: jax.Array, scales: jax.Array) -> jax.Array:
    """Returns bytes with each block's scale behind it, as one array: shape `(parts, blocks, block + bytes)`."""
    # The shapes stay apart: XLA makes slow code for CPUs where a fused operation has to divide to find its operands.
    return jnp.concatenate([rounded, lax.bitcast_convert_type(scales, jnp.int8)], axis=-1)


def _read(message: jax.Array, dtype: np.dtype) -> jax.Array:
    """Returns the numbers of a message, shape `(parts, blocks, block)`."""
    block = message.shape[-1] - np.dtype(dtype).itemsize
    return _restored(message[..., :block], lax.bitcast_convert_type(message[..., block:], dtype))


def _numbers(value: jax.Array) -> jax.Array:
    """Returns an array as real numbers: complex ones as pairs."""
    return jnp.stack([value.real, value.imag]) if jnp.iscomplexobj(value) else value


def _as_like(numbers: jax.Array, value: jax.Array) -> jax.Array:
    """The inverse of `_numbers`: returns numbers in the shape and dtype of `value`."""
    if not jnp.iscomplexobj(value):
        return numbers.reshape(value.shape)
    pair = numbers.reshape(2, *value.shape)
    return lax.complex(pair[0], pair[1])
