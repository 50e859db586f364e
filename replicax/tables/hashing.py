"""Hashing keys of any kind into the ids of a table."""

from __future__ import annotations

import hashlib

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import checked_int
from replicax.errors import ArgumentError
from replicax.tables.inputs import MOST_IDS

_SPREAD = (0x7FEB352D, 0x846CA68B)  # the multipliers of a 32-bit hash with little bias (Wellons, "hash-prospector")


def hashed_ids(keys: object, vocabulary_size: int, salt: int = 0) -> jax.Array | np.ndarray:
    """Returns ids for keys that are strings, or integers of any range.

    The same key has the same id in every process and every run. Different keys may have the same id, and then share
    its row: with as many rows as keys, about a third of the keys do.

    Args:
        keys: Array of any shape: integers (also inside a compiled step), strings or bytes.
        vocabulary_size: The number of rows of the table; the ids are smaller.
        salt: Another one gives other ids: two hashes of the same key seldom collide with the same other key.

    Returns:
        int32 ids in the shape of the keys; a JAX array for one, otherwise a NumPy array.

    Raises:
        ArgumentError: The keys are something else, such as floating numbers.

    Example:
        >>> ids = hashed_ids(["tea", "coffee", "tea"], 1000)
        >>> bool(ids[0] == ids[2]), ids.dtype.name
        (True, 'int32')
    """
    rows = checked_int("vocabulary_size", vocabulary_size, least=1)
    if rows >= MOST_IDS:
        raise ArgumentError(f"`vocabulary_size` is below 2**31, since programs have ids as int32; got {rows}.")
    if isinstance(keys, jax.Array):
        if not jnp.issubdtype(keys.dtype, jnp.integer):
            raise ArgumentError(f"Keys are integers, strings or bytes, got an array of {keys.dtype}.")
        high = (keys >> 31 >> 1).astype(jnp.uint32) if keys.dtype.itemsize > 4 else jnp.where(keys < 0, -1, 0)
        return _mixed(keys.astype(jnp.uint32), high.astype(jnp.uint32), salt, rows)
    array = np.asarray(keys)
    if np.issubdtype(array.dtype, np.integer):
        wide = array.astype(np.int64) if array.dtype != np.uint64 else array.view(np.int64)
        halves = (wide & 0xFFFFFFFF).astype(np.uint32), (wide >> 32).astype(np.uint32)
        return np.asarray(_mixed(jnp.asarray(halves[0]), jnp.asarray(halves[1]), salt, rows))
    flat = array.reshape(-1).tolist()
    if not all(isinstance(key, (str, bytes)) for key in flat):
        raise ArgumentError(f"Keys are integers, strings or bytes, got an array of {array.dtype}.")
    found = [_of_text(key, salt) % rows for key in flat]
    return np.asarray(found, np.int32).reshape(array.shape)


def _of_text(key: str | bytes, salt: int) -> int:
    text = key.encode() if isinstance(key, str) else key
    return int.from_bytes(
        hashlib.blake2b(text, digest_size=8, salt=salt.to_bytes(8, "little", signed=True)).digest(), "little"
    )


def _mixed(low: jax.Array, high: jax.Array, salt: int, rows: int) -> jax.Array:
    """Returns ids of integers, by their halves."""
    mixed = _spread(low ^ jnp.uint32(salt & 0xFFFFFFFF))
    mixed = _spread(mixed ^ high)
    return (mixed % jnp.uint32(rows)).astype(jnp.int32)


def _spread(value: jax.Array) -> jax.Array:
    value = (value ^ (value >> 16)) * jnp.uint32(_SPREAD[0])
    value = (value ^ (value >> 15)) * jnp.uint32(_SPREAD[1])
    return value ^ (value >> 16)
