"""The part of a draw of random bits that belongs to the rows of one replica, at the cost of a draw of its own shape.

JAX numbers the entries of a draw in row-major order and hashes each number with the key: Threefry-2x32 with 20 rounds
(Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", 2011), where `jax_threefry_partitionable` is on, as it is
by default. So a replica hashes the numbers that its rows have in the draw of the whole batch. Other generators know no
parts: there each replica draws for the whole batch and takes its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.extend.random as jex_random
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import vary
from replicax.program.ir.jaxprs import ROWS
from replicax.runtime.mesh import REPLICA_AXIS

_WORD = 2**32


def bits_of_rows(
    key: jax.Array,  # a scalar typed key, the same on all replicas
    bit_width: int | None,  # None for keys
    shape: tuple[int, ...],  # of the part
    dimension: int,  # of the rows, which come in the order of the replicas
    replicas: int,
    draw: Callable[[tuple[int, ...]], jax.Array],
) -> jax.Array:
    """Returns a replica's part of the bits, or the keys, that one device draws for the rows of all replicas."""
    counts = _counts(shape, dimension, replicas) if _is_hashed(key) else None
    if counts is None:
        return own_rows(draw(_whole(shape, dimension, replicas)), dimension, replicas)
    first, second = (vary(word, REPLICA_AXIS) for word in jax.random.key_data(key))
    varying = [vary(count, REPLICA_AXIS) for count in counts]
    words: list[jax.Array] = jex_random.threefry2x32_p.bind(first, second, *varying)
    high, low = map(ROWS, words)
    if bit_width is None:
        keys: jax.Array = jax.random.wrap_key_data(jnp.stack([high, low], axis=-1), impl=jax.random.key_impl(key))
        return vary(keys, REPLICA_AXIS)
    dtype = jnp.dtype(f"uint{bit_width}")
    if bit_width == 64:
        return (high.astype(dtype) << np.asarray(32, dtype)) | low.astype(dtype)
    return (high ^ low).astype(dtype)


def own_rows(whole: jax.Array, dimension: int, replicas: int) -> jax.Array:
    """Returns a replica's rows of an array that has those of all replicas in a dimension."""
    rows = whole.shape[dimension] // replicas
    start = jax.lax.axis_index(REPLICA_AXIS) * rows
    return ROWS(jax.lax.dynamic_slice_in_dim(vary(whole, REPLICA_AXIS), start, rows, dimension))


def _is_hashed(key: jax.Array) -> bool:
    partitionable: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # JAX makes it there
    return partitionable and jax.random.key_impl(key) == "threefry2x32"


def _whole(shape: tuple[int, ...], dimension: int, replicas: int) -> tuple[int, ...]:
    return tuple(size * replicas if i == dimension else size for i, size in enumerate(shape))


def _counts(shape: tuple[int, ...], dimension: int, replicas: int) -> tuple[jax.Array, jax.Array] | None:
    """Returns the numbers of the entries in the whole draw, as two words of 32 bits; None if it is too large."""
    whole = _whole(shape, dimension, replicas)
    strides = [math.prod(whole[i + 1 :]) for i in range(len(whole))]
    local = sum(
        (
            jax.lax.broadcasted_iota(jnp.uint32, shape, i) * np.uint32(stride % _WORD)
            for i, stride in enumerate(strides)
        ),
        start=jnp.zeros(shape, jnp.uint32),
    )
    begins = [replica * shape[dimension] * strides[dimension] for replica in range(replicas)]
    index = jax.lax.axis_index(REPLICA_AXIS)
    if math.prod(whole) <= _WORD:
        step = np.uint32(shape[dimension] * strides[dimension] % _WORD)
        return jnp.zeros(shape, jnp.uint32), local + index.astype(jnp.uint32) * step
    # Without 64-bit integers in JAX this needs rows that come first: then the numbers of a replica's entries are
    # consecutive.
    if dimension or math.prod(shape) > _WORD:
        return None
    high, low = (
        jnp.asarray(words, jnp.uint32)[index] for words in zip(*(divmod(at, _WORD) for at in begins), strict=True)
    )
    count = local + low
    return high + (count < low).astype(jnp.uint32), count
