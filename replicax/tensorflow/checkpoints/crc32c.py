"""The checksum of TensorFlow's files, CRC-32C (Castagnoli), by NumPy.

A CRC is the remainder of a polynomial over GF(2), so it is linear: words of four bytes are folded many at a time, each
onto the one that stands a power of two later. A fold multiplies all words by one constant, by tables of 65,536 entries.
"""

from __future__ import annotations

import functools

import numpy as np

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reversed: the last bit stands for the highest power.
_ROW = 14  # Logarithm of how many words are folded at a time: 64 KiB, which fit into the cache of a core.


def crc32c(data: bytes | bytearray | memoryview | np.ndarray, before: int = 0) -> int:
    """Returns the CRC-32C of `data`, or of bytes whose checksum is `before` with `data` behind them."""
    flat = np.frombuffer(data, np.uint8)
    register = before ^ 0xFFFFFFFF
    whole = flat.size // 4 * 4
    if whole:
        register = _of_words(flat[:whole].view("<u4"), register)
    table = _byte_table()
    for byte in flat[whole:].tolist():
        register = register >> 8 ^ int(table[(register ^ byte) & 0xFF])
    return register ^ 0xFFFFFFFF


def unmasked(stored: int) -> int:
    """Returns the checksum that a file stores, which TensorFlow and LevelDB rotate and add a constant to."""
    rotated = (stored - 0xA282EAD8) & 0xFFFFFFFF
    return (rotated >> 17 | rotated << 15) & 0xFFFFFFFF


def _of_words(words: np.ndarray, register: int) -> int:
    level = min(_ROW, (words.size - 1).bit_length())
    row = 1 << level
    head = (words.size - 1) % row + 1
    state = np.zeros(row, np.uint32)
    state[-head:] = words[:head]  # Zeros in front change nothing.
    state[-head] ^= np.uint32(register)
    for begin in range(head, words.size, row):
        state = _shifted(state, level)
        state ^= words[begin : begin + row]
    while level:
        level -= 1
        state = _shifted(state[: 1 << level], level) ^ state[1 << level :]
    return int(_shifted(state, 0)[0])


def _shifted(words: np.ndarray, level: int) -> np.ndarray:
    """Returns remainders with `2**level` words of zeros behind them."""
    low, high = _tables(level)
    return low[words & 0xFFFF] ^ high[words >> 16]


@functools.lru_cache(maxsize=_ROW + 1)
def _tables(level: int) -> tuple[np.ndarray, np.ndarray]:
    columns = _columns(level)
    low, high = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    for bit in range(16):
        low = np.concatenate([low, low ^ columns[bit]])
        high = np.concatenate([high, high ^ columns[16 + bit]])
    return low, high


@functools.lru_cache(maxsize=_ROW + 1)
def _columns(level: int) -> np.ndarray:
    """Returns for each bit of a remainder its image with `2**level` words of zeros behind it."""
    if level:
        return _shifted(_columns(level - 1), level - 1)
    columns = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(32):
        columns = _next(columns)
    return columns


@functools.cache
def _byte_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = _next(table)
    return table


def _next(words: np.ndarray) -> np.ndarray:
    """Returns remainders with one more bit, a zero, behind them."""
    return words >> 1 ^ np.where(words & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
