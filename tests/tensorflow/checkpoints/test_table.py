from __future__ import annotations

import base64
from pathlib import Path

import pytest

from replicax.tensorflow.checkpoints.crc32c import crc32c
from replicax.tensorflow.checkpoints.table import MAGIC, Table, uncompressed
from tests.migrate import bundles

# What Google's library made of some bytes, in base 85.
COMPRESSED = [
    # words
    (
        b"the cat sat on the mat, the cat sat on the hat. " * 20,
        "zy~;VXk{Q{VRRsKVRRsGZXf{<3~ga_ECmTV7yt}tVRSA|7y$k-0RAul{xAUkFaZ8A0RAul{xAUkFaZ8A0RAul{xAUkFaZ8A0P-*Z",
    ),
    # runs
    (
        b"a" * 5000 + b"b" * 70 + bytes(range(256)) * 2,
        "&MN?6{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~"
        "0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900"
        "{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0Ra910R900{s92~0RRmF"
        "0Al_D00jZ`1pxp70s{mE1_uZU3JVMk4i69!5)%{^78e*98XFuP9v>hfA|oUvCMPH<Dl054E-x@KGBY$aHa9pqIy*c)K0iP~LPJDF"
        "Mn_0VN=r;lPESx#Qd3k_R##YAT3cLQUSD8gVq;`wW@l(=YHMt5Zf|gLa&vTbc6WGrdV73*et&?0f`f#GhKGoWii?bmj*pO$l9QB`"
        "mY0~Bnwy-Ro}ZwhqNAjxrl+W>s;jK6uCK7Mva__cwzs&sy1Tr+zQ4f1!o$SH#>dFX%FE2n&d<=%($mz{*4NnC+S}aS-rwNi;^XAy"
        "=I7|?>g(+7?(gvN^7Hid_V@Vt`uqI-{{H|00s{mE{r~~~00I600p<V!",
    ),
    # none
    (
        bytes(range(200)),
        "$N})j009C61O)~M2nh-c3=Iws5D^j+6crX17#SKH9337XAR!_nBqb&%C@Cr{EG;fCFflSSG&MFiI5|2yJUu=?KtV!7L`6nNNJ&ad"
        "OifNtP*GA-R8>}2SXo+ITwPvYU}0ioWMyV&XlZI|Y;A6DaB*^Tbai%jczJqze0_d@fPsR8goTEOh>41ejE#<ukdcy;l$Dm3n3<ZJ"
        "oSmMZprN9pq@|{(sHv)}tgWuEu(7hUw6(UkxVgH!yuH4^z`?@9#Kp$P",
    ),
    # empty
    (b"", "00"),
]
ENTRIES = {f"layer_{i:04d}/{'kernel' if i % 2 else 'bias'}".encode(): b"value" * (i % 7) for i in range(300)}


def written(folder: Path, data: bytes) -> Path:
    path = folder / "table"
    path.write_bytes(data)
    return path


def literals(data: bytes) -> bytes:
    """Returns data as Snappy may store them: nothing but bytes as they are."""
    parts = [data[i : i + 60] for i in range(0, len(data), 60)]
    return bundles.varint(len(data)) + b"".join(bytes([len(part) - 1 << 2]) + part for part in parts)


@pytest.mark.parametrize("compress", [None, literals])
@pytest.mark.parametrize("per_block", [1, 20, 1000])
def test_entries_come_back_in_order(tmp_path, per_block, compress):
    table = Table(written(tmp_path, bundles.table(ENTRIES, per_block, compress)))
    assert list(table.items()) == sorted(ENTRIES.items())
    assert all(table.get(key) == value for key, value in ENTRIES.items())
    assert [table.get(key) for key in (b"", b"layer_0001", b"z")] == [None, None, None]


@pytest.mark.parametrize(("data", "compressed"), COMPRESSED)
def test_snappy(data, compressed):
    assert uncompressed(base64.b85decode(compressed)) == data


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "there is no number"),
        (b"\x05\x08ab", "damaged at byte 1"),  # 3 bytes announced, 2 there
        (b"\x02\x08abc", "damaged at byte 1"),  # more than the length
        (b"\x05\x08abc", "3 bytes instead of 5"),
        (b"\x05\x00a\x05\x02", "refers 2 bytes back at byte 3"),
        (b"\x05\x00a\x05\x00", "refers 0 bytes back"),
        (b"\xff\xff\xff\xff\x0f\x00a", "1 bytes instead of 4294967295"),
        (b"\x05\xfc\xff", "damaged at byte 1"),
    ],
)
def test_damaged_compression(data, problem):
    with pytest.raises(ValueError, match=problem):
        uncompressed(data)


def test_every_flipped_bit_is_noticed_or_means_nothing(tmp_path):
    """Only the padding of the footer has no checksum, nor a meaning."""
    data = bundles.table({b"": b"header", b"a": b"1", b"ab": b"2"})
    unnoticed = 0
    for i in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[i // 8] ^= 1 << i % 8
        try:
            assert dict(Table(written(tmp_path, bytes(flipped))).items()) == {b"": b"header", b"a": b"1", b"ab": b"2"}
            unnoticed += 1
        except ValueError:
            pass
    assert 0 < unnoticed <= 40 * 8


@pytest.mark.parametrize("size", range(0, 100, 7))
def test_cut_off_files(tmp_path, size):
    with pytest.raises(ValueError, match=r"no table ends at byte|checksum|does not fit"):
        dict(Table(written(tmp_path, bundles.table(ENTRIES)[:size])).items())


def one_block(content: bytes, kind: int = 0) -> bytes:
    """Returns a table whose only block has the given bytes, with the right checksum."""

    def stored(data: bytes, kind: int = 0) -> bytes:
        return data + bytes([kind]) + bundles.masked(crc32c(data + bytes([kind]))).to_bytes(4, "little")

    index = bundles.block({b"\xff": bundles.varint(0) + bundles.varint(len(content))})
    data = stored(content, kind)
    handles = (bundles.varint(len(data)) + bundles.varint(len(index))) * 2
    return data + stored(index) + handles.ljust(40, b"\0") + MAGIC


def end(restarts: int = 1) -> bytes:
    return bytes(4) + restarts.to_bytes(4, "little")


@pytest.mark.parametrize(
    ("content", "kind", "problem"),
    [
        (b"", 0, "a block of 0 bytes cannot have 0 restarts"),
        (end(1 << 31), 0, "cannot have 2147483648 restarts"),
        (b"\x01\x01\x01ab" + end(), 0, "longer than the block, or than the key before"),
        (b"\x00\x7f\x01ab" + end(), 0, "longer than the block"),
        (b"\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01a" + end(), 0, "longer than the block"),
        (b"\x00\x01\x00b\x00\x01\x00a" + end(), 0, "the key at byte 4 of a block is not in order"),
        (b"\x00\x01\x00a\x00\x01\x00a" + end(), 0, "not in order"),
        (b"abc", 2, "compressed in an unknown way, 2"),
        (b"\x05\x08abc", 1, "a compressed block has 3 bytes instead of 5"),
    ],
)
def test_wrong_blocks_with_right_checksums(tmp_path, content, kind, problem):
    with pytest.raises(ValueError, match=problem):
        dict(Table(written(tmp_path, one_block(content, kind))).items())


def test_keys_cannot_fill_the_memory(tmp_path):
    """Each entry takes 5 bytes and states a key of 60,000: without a limit 200 KB would become 2 GB of keys."""
    data = b"\x00" + bundles.varint(60_000) + b"\x00" + b"k" * 60_000
    for i in range(30_000):
        data += bundles.varint(60_000 + i) + b"\x01\x00z"
    with pytest.raises(ValueError, match="far too long"):
        dict(Table(written(tmp_path, one_block(data + end()))).items())


def test_a_block_that_is_named_twice(tmp_path):
    entries = bundles.block({b"a": b"1"})
    good = one_block(entries)
    assert dict(Table(written(tmp_path, good)).items()) == {b"a": b"1"}
    stored = good[: len(entries) + 5]
    handle = bundles.varint(0) + bundles.varint(len(entries))
    index = bundles.block({b"b": handle, b"c": handle}) + b"\0"
    handles = (bundles.varint(len(stored)) + bundles.varint(len(index) - 1)) * 2
    data = stored + index + bundles.masked(crc32c(index)).to_bytes(4, "little") + handles.ljust(40, b"\0") + MAGIC
    with pytest.raises(ValueError, match=r"the key b'a' in the block at byte 0 is not in order"):
        dict(Table(written(tmp_path, data)).items())
