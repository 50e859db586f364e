from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from replicax.tensorflow.checkpoints.bundle import slice_key
from tests.migrate import bundles
from tests.migrate.bundles import message, varint

FLOAT, INT32, STRING, BOOL = 1, 3, 7, 10
ALL = message((1, b""))  # a slice of one axis: all of it


def written(path: Path, dtype: int, lengths: tuple[int, ...], values: bytes, part: bytes = ALL) -> Path:
    """Writes a checkpoint of one tensor, `x`, with one slice."""
    described = message((1, "x"), (2, bundles.shape(lengths)), (3, dtype), (4, part))
    bounds = ((0, -1),) * len(lengths)
    entries = {b"": message((1, message((1, described)))), slice_key(b"x", bounds): message((2, message((3, values))))}
    path.write_bytes(bundles.table(entries))
    return path


def packed(*numbers: int) -> bytes:
    return b"".join(varint(number) for number in numbers)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (FLOAT, message((5, np.float32([1.5, -2]).tobytes())), np.float32([1.5, -2])),
        (FLOAT, message((4, np.float32([1.5, -2]).tobytes())), np.float32([1.5, -2])),  # as bytes
        (INT32, message((7, packed(-1, 300))), np.int32([-1, 300])),
        (INT32, message((7, packed(-1)), (7, packed(2**31 - 1))), np.int32([-1, 2**31 - 1])),
        (BOOL, message((11, packed(1, 0))), np.array([True, False])),
        (19, message((13, packed(0x3C00, 0xC000))), np.float16([1, -2])),
        (17, message((7, packed(65535, 1))), np.uint16([65535, 1])),
        (22, message((16, packed(2**32 - 1, 1))), np.uint32([2**32 - 1, 1])),
        (23, message((17, packed(2**64 - 1, 1))), np.uint64([2**64 - 1, 1])),
        (18, message((12, np.complex128([1j, 2]).tobytes())), np.complex128([1j, 2])),
    ],
)
def test_fields_of_values(tmp_path, dtype, values, expected):
    found = open_checkpoint(written(tmp_path / "c", dtype, (2,), values)).read("x")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("dtype", "values", "problem"),
    [
        (FLOAT, message((5, b"\0\0\0\0")), r"a slice of shape \(2,\) has 1 values"),
        (FLOAT, message((5, b"\0\0\0\0\0")), "buffer size must be a multiple"),
        (INT32, message((7, packed(1, 2)[:-1] + b"\x80")), "a number in a list is cut off"),
        (INT32, message((7, b"\xff" * 10 + b"\x01")), "a number in a list is cut off"),
        (BOOL, message((11, packed(1, 2))), "a truth value is neither 0 nor 1"),
        (FLOAT, message((1, INT32), (5, bytes(8))), "is not as the list of tensors says"),
        (STRING, message((8, b"a")), "has 1 values"),
    ],
)
def test_wrong_values_with_right_checksums(tmp_path, dtype, values, problem):
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(written(tmp_path / "c", dtype, (2,), values)).read("x")


@pytest.mark.parametrize(
    ("lengths", "part", "problem"),
    [
        ((1 << 61,), ALL, "is not the shape of an array"),
        ((2, 2), ALL, "has a slice .* outside of it"),
        ((2,), message((1, message((1, 1)))), "the slices of 'x' have 1 values instead of 2"),
        ((2,), message((1, message((1, 0), (2, 2)))), "its slice .* is not there"),
    ],
)
def test_wrong_slices(tmp_path, lengths, part, problem):
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(written(tmp_path / "c", FLOAT, lengths, message((5, bytes(8))), part)).read("x")


def test_a_file_of_several_that_is_missing(tmp_path):
    written(tmp_path / "c-00001-of-00002", FLOAT, (2,), message((5, bytes(8))))
    with pytest.raises(CheckpointError, match="it has 1 files of 00002"):
        open_checkpoint(tmp_path / "c")


def test_a_table_that_lists_nothing(tmp_path):
    (tmp_path / "c").write_bytes(bundles.table({b"a": b"b"}))
    with pytest.raises(CheckpointError, match="it lists no tensors"):
        open_checkpoint(tmp_path / "c")
