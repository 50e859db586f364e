from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from replicax.tensorflow.checkpoints.bundle import Bundle, slice_key
from replicax.tensorflow.checkpoints.crc32c import crc32c
from replicax.tensorflow.checkpoints.tensors import checked_slices
from tests.migrate import bundles
from tests.migrate.recorded import identical

HEADER = bundles.message((1, 1), (3, bundles.message((1, 1))))
FLOAT, STRING = 1, 7
DTYPES = [
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("complex64", "complex128", "bool"),
]
EXTENDED = ["bfloat16", "float8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz", "int4", "uint4", "int2", "uint2"]


def random(dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 2, (3, 5)) + np.arange(3)[:, None] * (dtype != "bool")
    return (values % 2 if "2" in dtype[-1:] or dtype == "bool" else values).astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("dtype", [*DTYPES, *EXTENDED])
def test_dtypes_of_both_byte_orders(tmp_path, dtype, big_endian):
    values = random(dtype)
    bundles.write_bundle(tmp_path / "c", {"x": values, "cut": values}, 2, big_endian, {"cut": (2, 1)})
    checkpoint = open_checkpoint(tmp_path / "c")
    assert identical(checkpoint.read("x"), values)
    assert identical(checkpoint.read("cut"), values)


def written(folder: Path, entries: dict[bytes, bytes], data: bytes = b"") -> Path:
    """Writes an index of the given entries, behind a header if they have none, and the data of one file."""
    Path(folder / "c.index").write_bytes(bundles.table({b"": HEADER, **entries}))
    Path(folder / "c.data-00000-of-00001").write_bytes(data)
    return folder / "c"


def entry(dtype: int = FLOAT, shape: tuple[int, ...] = (2,), shard: int = 0, offset: int = 0, size: int = 8) -> bytes:
    return bundles.message((1, dtype), (2, bundles.shape(shape)), (3, shard), (4, offset), (5, size))


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({b"": b""}, "the index has no header"),
        ({b"": bundles.message((1, 1), (2, 2))}, "no header, or one of a later version"),
        ({b"": bundles.message((1, 1), (3, bundles.message((1, 9), (2, 2))))}, "one of a later version"),
        ({b"x": entry(shape=(3,))}, r"b'x' of shape \(3,\) and dtype float32 cannot have 8 bytes"),
        ({b"x": entry(shape=(1 << 61,))}, "is not the shape of an array"),
        ({b"x": entry(shape=(1 << 40, 0, 1 << 40))}, "is not the shape of an array"),
        ({b"x": entry(shape=(-1,))}, r"\[-1\] is not the shape of an array"),
        ({b"x": entry(shape=(1,) * 65)}, "is not the shape of an array"),
        ({b"x": entry(offset=4)}, r"b'x' should be at bytes 4 to 12 of c.data-00000-of-00001, which has 8"),
        ({b"x": entry(offset=-8)}, "an entry has 8 bytes at byte -8"),
        ({b"x": entry(size=(1 << 63) - 8)}, "should be at bytes 0 to"),
        ({b"x": entry(shard=1)}, "b'x' is in file 1 of 1"),
        ({b"x": entry(dtype=STRING, shape=(1 << 50,), size=8)}, "cannot have 8 bytes"),
        ({b"\xff": entry()}, "can't decode byte"),
        ({b"x": b"\xff"}, "there is no number at byte 0"),
    ],
)
def test_wrong_entries_with_right_checksums(tmp_path, entries, problem):
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(written(tmp_path, entries, bytes(8)))


def test_a_missing_file(tmp_path):
    bundles.write_bundle(tmp_path / "c", {"x": np.ones(3), "y": np.ones(3)}, shards=2)
    (tmp_path / "c.data-00001-of-00002").unlink()
    with pytest.raises(CheckpointError, match=r"there is no c.data-00001-of-00002, in which b'x' should be"):
        open_checkpoint(tmp_path / "c")


def partitioned(shape: tuple[int, ...], *slices: tuple[int, int]) -> dict[bytes, bytes]:
    """Returns the entries of a tensor of floats that is cut along its first axis, each slice at byte 0."""
    parts = [bundles.message((1, bundles.message((1, start), (2, rows)))) for start, rows in slices]
    whole = bundles.message((1, FLOAT), (2, bundles.shape(shape)), *((7, part) for part in parts))
    keys = {slice_key(b"x", ((start, rows),)): (rows,) for start, rows in slices if start >= 0 and rows >= 0}
    zeros = {rows: bundles.masked(crc32c(bytes(4 * rows))) for (rows,) in keys.values() if rows < 100}
    return {b"x": whole} | {
        key: bundles.message(
            (1, FLOAT), (2, bundles.shape(part)), (5, 4 * part[0]), (6, zeros.get(part[0], 0)), fixed32=6
        )
        for key, part in keys.items()
    }


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (partitioned((4,), (0, 2)), "the slices of 'x' have 2 values instead of 4"),
        (partitioned((4,), (0, 2), (3, 2)), r"'x' of shape \(4,\) has a slice .* outside of it"),
        (partitioned((4, 1), (0, 4)), "has a slice .* outside of it"),
        (partitioned((4,), (0, -1)), r"a slice starts at 0 and has -1 values"),
        (partitioned((4,), (0, 1 << 62)), "is not the shape of an array|outside of it"),
        ({b"x": partitioned((4,), (0, 2), (2, 2))[b"x"]}, r"b'x' lacks its slice \(\(0, 2\),\)"),
    ],
)
def test_slices_that_do_not_fit(tmp_path, entries, problem):
    with pytest.raises(CheckpointError, match=problem):
        open_checkpoint(written(tmp_path, entries, bytes(16)))


def test_slices_that_overlap_and_leave_a_gap(tmp_path):
    with pytest.raises(CheckpointError, match="the slices of 'x' overlap"):
        open_checkpoint(written(tmp_path, partitioned((4,), (0, 2), (1, 2)), bytes(16)))
    good = open_checkpoint(written(tmp_path, partitioned((4,), (0, 2), (2, 2)), bytes(16)))
    assert good.read("x").tolist() == [0, 0, 0, 0]


def test_slices_along_two_axes():
    halves = [((i, 2), (j, 3)) for i in (0, 2) for j in (0, 3)]
    assert checked_slices("x", (4, 6), halves) == [(2, 3)] * 4
    assert checked_slices("x", (4, 6), [((0, 2), (0, -1)), ((2, 0), (0, -1)), ((2, 2), (0, -1))]) == [
        (2, 6),
        (0, 6),
        (2, 6),
    ]
    with pytest.raises(ValueError, match="overlap"):
        checked_slices("x", (4, 6), [*halves[:3], ((2, 2), (2, 3))])
    many = [((0, 1), (i, 1)) for i in range(4000)] + [((1, 1), (0, -1))]
    assert len(checked_slices("x", (2, 4000), many)) == 4001
    with pytest.raises(ValueError, match="are 12000, cut along several axes: too many to compare"):
        checked_slices("x", (2, 6000), [((j, 1), (i, 1)) for j in (0, 1) for i in range(6000)])


def strings(*values: bytes) -> bytes:
    """Returns the bytes of a tensor of strings."""
    lengths = b"".join(len(value).to_bytes(4, "little") for value in values)
    check = bundles.masked(crc32c(lengths)).to_bytes(4, "little")
    return b"".join(bundles.varint(len(value)) for value in values) + check + b"".join(values)


def checksum(data: bytes, *values: bytes) -> int:
    lengths = b"".join(len(value).to_bytes(4, "little") for value in values)
    return bundles.masked(crc32c(data[len(values) :], crc32c(lengths)))


def test_strings_and_damage_to_them(tmp_path):
    data = strings(b"ab", b"", b"c\0d")
    whole = checksum(data, b"ab", b"", b"c\0d")
    coded = bundles.message((1, STRING), (2, bundles.shape((3,))), (5, len(data)), (6, whole), fixed32=6)
    assert open_checkpoint(written(tmp_path, {b"x": coded}, data)).read("x").tolist() == [b"ab", b"", b"c\0d"]
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 2
        with pytest.raises(CheckpointError, match=r"the lengths of the strings|checksum|there is no number"):
            open_checkpoint(written(tmp_path, {b"x": coded}, bytes(damaged))).read("x")


def test_truth_values_are_0_or_1(tmp_path):
    data = b"\0\2"
    coded = bundles.message((1, 10), (2, bundles.shape((2,))), (5, 2), (6, bundles.masked(crc32c(data))), fixed32=6)
    with pytest.raises(CheckpointError, match="a truth value is neither 0 nor 1"):
        open_checkpoint(written(tmp_path, {b"x": coded}, data)).read("x")


def test_what_only_tensorflow_can_read_is_listed(tmp_path):
    variant, later = 21, 99
    checkpoint = open_checkpoint(written(tmp_path, {b"x": entry(variant), b"y": entry(later)}, bytes(8)))
    assert [(info.dtype, info.nbytes) for info in checkpoint.tensors.values()] == [(None, 8), (None, 8)]
    with pytest.raises(CheckpointError, match=r"'x' in .*c is of a type that only TensorFlow can read"):
        checkpoint.read("x")
    assert checkpoint.verify() == {}


@pytest.mark.parametrize(
    ("name", "bounds", "key"),
    [  # As TensorFlow's OrderedCode writes them, seen in the index of a partitioned variable; and longer numbers.
        (b"w", ((0, 4), (0, -1)), b"\0w\0\1\1\2\x80\x84\x80\x7f"),
        (b"w", ((4, 3), (0, -1)), b"\0w\0\1\1\2\x84\x83\x80\x7f"),
        (b"a\0b", ((63, 64),), b"\0a\0\xffb\0\1\1\1\xbf\xc0\x40"),
        (b"", ((8191, 8192),), b"\0\0\1\1\1\xdf\xff\xe0\x20\x00"),
        (b"n", (((1 << 62) - 1, 1 << 62),), b"\0n\0\1\1\1\xff\xbf" + b"\xff" * 7 + b"\xff\xc0" + b"\x40" + bytes(7)),
    ],
)
def test_keys_of_slices(name, bounds, key):
    assert slice_key(name, bounds) == key


def test_the_index_alone_is_held_in_memory(tmp_path):
    bundles.write_bundle(tmp_path / "c", {"x": np.ones((10, 2))})
    parts = list(Bundle(tmp_path / "c").parts("x"))
    assert [(part.starts, part.values.shape) for part in parts] == [((0, 0), (10, 2))]
