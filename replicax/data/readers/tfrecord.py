"""TFRecord files, plain or compressed, with their checksums.

Grain reads them too (`TFRecordIterDataset`), but checks no checksum, reads no compressed file, and goes on from a byte
and not from a record. The checksum itself, CRC-32C, is computed by `google-crc32c`.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import IO, Any

from replicax.checks import checked
from replicax.data.extras import needed
from replicax.data.readers.examples import ExampleParser, serialized_example
from replicax.data.readers.files import Cache, Paths, listed, opened
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, DataError

_COMPRESSIONS = ("auto", "", "GZIP", "ZLIB")
_CHUNK = 1 << 20


def read_tfrecord(
    files: Paths,
    features: Mapping[str, Any] | None = None,
    *,
    compression: str = "auto",
    cache: Cache | None = None,
) -> Rows:
    """Returns the records of TFRecord files; each is checked against its checksums.

    Args:
        files: A path, a pattern (its files in the order of their names), a url, or a list of them.
        features: What each record has, as `parse_example` takes it: the rows are dicts of arrays. None for rows that
            are bytes.
        compression: `""`, `"GZIP"` or `"ZLIB"`, as TensorFlow names them; `"auto"` looks at each file.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: No file matches, an argument has another form, or a package is missing.
        DataError: While iterating: a file or a record is damaged, or lacks a feature.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> _ = rx.data.write_tfrecord(f"{folder}/train-0.tfrecord", [{"label": n} for n in range(3)])
        >>> rows = rx.data.read_tfrecord(f"{folder}/train-*.tfrecord", {"label": rx.data.FixedLenFeature([], "int64")})
        >>> rows.batch(3).first()
        {'label': array([0, 1, 2])}
    """
    if compression not in _COMPRESSIONS:
        raise ArgumentError(f"`compression` is one of {_COMPRESSIONS}, got {compression!r}.")
    rows = Rows(_TFRecordFiles(listed(files), compression, cache))
    return rows if features is None else rows.map(ExampleParser(features))


@checked
def write_tfrecord(file: str, rows: Iterable[bytes | Mapping[str, Any]], *, compression: str = "") -> int:
    """Writes a TFRecord file on this machine, with checksums; it has its name once it is whole.

    Args:
        file: Its name.
        rows: Records as bytes; or dicts of features (numbers, bytes, texts, or arrays of them), which become
            `tf.train.Example`s.
        compression: `""` or `"GZIP"`.

    Returns:
        The number of records.

    Raises:
        ArgumentError: An argument has another form, or a package is missing.

    Example:
        >>> import tempfile
        >>> name = tempfile.mkdtemp() + "/a.tfrecord"
        >>> rx.data.write_tfrecord(name, [{"n": n} for n in range(3)])
        3
        >>> rx.data.read_tfrecord(name, {"n": rx.data.FixedLenFeature([], "int64")}).batch(3).first()
        {'n': array([0, 1, 2])}
    """
    if not file:
        raise ArgumentError("`file` is the name of a file, got ''.")
    if compression not in ("", "GZIP"):
        raise ArgumentError(f"`compression` is '' or 'GZIP', got {compression!r}.")
    crc = needed("google_crc32c", "rx.data.write_tfrecord").value
    unfinished, count = f"{file}.unfinished", 0
    try:
        with gzip.open(unfinished, "wb") if compression else open(unfinished, "wb") as stream:
            for row in rows:
                if not isinstance(row, (bytes, Mapping)):
                    raise ArgumentError(f"A row is bytes or a dict of features, got {row!r:.100} as row {count}.")
                record = row if isinstance(row, bytes) else serialized_example(row)
                length = struct.pack("<Q", len(record))
                for part in (length, record):
                    stream.write(part + struct.pack("<I", _masked(crc(part))))
                count += 1
        os.replace(unfinished, file)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
    return count


def _masked(crc: int) -> int:
    """Returns a checksum as it stands in a file."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class _TFRecordFiles:
    """The records of files, as bytes."""

    def __init__(self, files: list[str], compression: str, cache: Cache | None):
        self.files = files
        self._compression, self._cache = compression, cache
        self._crc: Callable[[bytes], int] = needed("google_crc32c", "rx.data.read_tfrecord").value

    def read(self, file: int, first: int) -> Iterator[bytes | DataError]:
        """Yields the records of a file from number `first` on."""
        name = self.files[file]
        with opened(name, self._cache) as raw:
            stream = self._uncompressed(raw)
            record = 0
            while head := _exactly(stream, 12, name, record, may_end=True):
                if self._masked(head[:8]) != int.from_bytes(head[8:], "little"):
                    raise DataError(
                        "the checksum of its length is wrong, so the rest of the file cannot be read. The file is "
                        "damaged, or no TFRecord.",
                        name,
                        record,
                    )
                length = int.from_bytes(head[:8], "little")
                if record < first and stream is raw and raw.seekable():
                    raw.seek(length + 4, 1)
                else:
                    body = _exactly(stream, length + 4, name, record)
                    data = body[:length]
                    if record >= first:
                        good = self._masked(data) == int.from_bytes(body[length:], "little")
                        yield data if good else DataError("its checksum is wrong: the record is damaged.", name, record)
                record += 1

    def _masked(self, data: bytes) -> int:
        return _masked(self._crc(data))

    def _uncompressed(self, raw: IO[bytes]) -> Any:
        kind = self._compression
        if kind == "auto":
            head = raw.read(12)
            raw.seek(0)
            # A length may begin as a compressed file does, but not with its checksum.
            plain = len(head) == 12 and self._masked(head[:8]) == struct.unpack("<I", head[8:])[0]
            is_zlib = len(head) > 1 and head[0] & 0x0F == 8 and (head[0] << 8 | head[1]) % 31 == 0
            kind = "" if plain else "GZIP" if head[:2] == b"\x1f\x8b" else "ZLIB" if is_zlib else ""
        if kind == "GZIP":
            return gzip.GzipFile(fileobj=raw)
        return _Inflated(raw) if kind == "ZLIB" else raw


class _Inflated:
    """A stream in zlib's format."""

    def __init__(self, raw: IO[bytes]):
        self._raw, self._inflate, self._ahead = raw, zlib.decompressobj(), b""

    def read(self, size: int) -> bytes:
        parts, missing = [self._ahead], size - len(self._ahead)
        while missing > 0 and (chunk := self._inflate.unused_data or self._raw.read(_CHUNK)):
            if self._inflate.eof:  # Another stream follows the one that ends here.
                self._inflate = zlib.decompressobj()
            parts.append(self._inflate.decompress(chunk))
            missing -= len(parts[-1])
        if missing > 0 and not self._inflate.eof:
            raise EOFError("it ends before its end mark")
        found = b"".join(parts)
        self._ahead = found[size:]
        return found[:size]


def _exactly(stream: Any, size: int, name: str, record: int, may_end: bool = False) -> bytes:
    try:
        found: bytes = stream.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"the compressed file is damaged or cut off ({error}).", name, record) from error
    except (OverflowError, MemoryError) as error:
        raise DataError(f"it says that it has {size} bytes, which cannot be read.", name, record) from error
    if len(found) != size and not (may_end and not found):
        raise DataError(f"the file is cut off: {len(found)} of {size} bytes of the record are there.", name, record)
    return found
