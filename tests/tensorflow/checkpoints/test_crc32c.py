from __future__ import annotations

import numpy as np
import pytest

from replicax.tensorflow.checkpoints.crc32c import crc32c, unmasked
from tests.migrate.bundles import masked


def bit_by_bit(data: bytes, before: int = 0) -> int:
    """The definition: one bit of the polynomial division at a time."""
    register = before ^ 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),  # the check value of the CRC catalogue
        (bytes(32), 0x8A9136AA),  # these three stand in RFC 3720, B.4
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_values(data, checksum):
    assert crc32c(data) == checksum


@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 63, 1000, 1 << 16, (1 << 16) + 1, (1 << 16) + 4, (1 << 17) + 7])
def test_any_length_behind_any_checksum(size):
    rng = np.random.default_rng(size)
    data, before = rng.bytes(size), int(rng.integers(1 << 32))
    assert crc32c(data, before) == bit_by_bit(data, before)


def test_parts_have_the_checksum_of_the_whole():
    data = np.random.default_rng(0).bytes(300_001)
    for cut in (0, 1, 4, 65_537, 300_001):
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)


def test_arrays_of_any_dtype_and_read_only_ones():
    values = np.arange(1000, dtype=np.float64)
    assert crc32c(values.view(np.uint8)) == crc32c(values.tobytes())
    values.flags.writeable = False
    assert crc32c(values) == bit_by_bit(values.tobytes())


def test_masking_can_be_undone():
    for checksum in (0, 1, 0xFFFFFFFF, 0xE3069283):
        assert unmasked(masked(checksum)) == checksum
    assert masked(0) == 0xA282EAD8
