"""Sources of every kind, with rows that are known: row n is the number n. Used here and by `tests/soak/input.py`."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import replicax as rx
from replicax.data.readers.examples import serialized_example

#: Rows of each file, one of them empty.
SIZES = (13, 0, 31, 7, 22, 1)
ROWS = sum(SIZES)
FEATURES = {"n": rx.data.FixedLenFeature([], "int64"), "name": rx.data.FixedLenFeature([], "string", b"none")}


def parts(sizes: tuple[int, ...] = SIZES) -> list[range]:
    """Returns the rows of each file."""
    ends = np.cumsum(sizes).tolist()
    return [range(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def example(**features: Any) -> bytes:
    """Returns a serialized `tf.train.Example`."""
    return serialized_example(features)


def framed(record: bytes) -> bytes:
    """Returns a record as it stands in a TFRecord file."""
    import google_crc32c

    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def _number(row: Any) -> np.int32:
    return np.int32(row["n"])


def tfrecord(folder: Path, sizes: tuple[int, ...] = SIZES, pack: Callable[[bytes], bytes] = bytes) -> None:
    for index, rows in enumerate(parts(sizes)):
        data = b"".join(framed(example(n=n, name=b"row" * 9)) for n in rows)
        (folder / f"{index:02}.tfrecord").write_bytes(pack(data))


def array_record(folder: Path) -> None:
    from array_record.python import array_record_module

    for index, rows in enumerate(parts()):
        if rows:
            writer = array_record_module.ArrayRecordWriter(str(folder / f"{index:02}.array_record"), "group_size:1")
            for n in rows:
                writer.write(example(n=n))
            writer.close()


def parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for index, rows in enumerate(parts()):
        table = pa.table({"n": np.array(rows, np.int32), "text": [str(n) for n in rows]})
        pq.write_table(table, folder / f"{index:02}.parquet", row_group_size=8)


def webdataset(folder: Path) -> None:
    for index, rows in enumerate(parts()):
        with tarfile.open(folder / f"{index:02}.tar", "w") as tar:
            for n in rows:
                for ending, data in (("cls", str(n).encode()), ("json", json.dumps({"n": n}).encode())):
                    member = tarfile.TarInfo(f"sample{n:04}.{ending}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def csv(folder: Path) -> None:
    for index, rows in enumerate(parts()):
        (folder / f"{index:02}.csv").write_text("n,half\n" + "".join(f"{n},{n / 2}\n" for n in rows))


def json_lines(folder: Path) -> None:
    for index, rows in enumerate(parts()):
        (folder / f"{index:02}.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in rows))


def images(folder: Path) -> None:
    from PIL import Image

    for n in range(ROWS):
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        Image.new("RGB", (4, 4), (n, n, n)).save(folder / "ab"[n % 2] / f"{n:04}.png")


def texts(folder: Path) -> None:
    for n in range(ROWS):
        (folder / "ab"[n % 2]).mkdir(exist_ok=True)
        (folder / "ab"[n % 2] / f"{n:04}.txt").write_text(str(n))


def tokens(folder: Path) -> None:
    half = ROWS // 2 * 3
    all_tokens = np.arange(3 * ROWS + 1, dtype=np.uint16)
    all_tokens[: half + 1].tofile(folder / "0.bin")  # The last token of a file begins no window.
    all_tokens[half:].tofile(folder / "1.bin")


def numpy(folder: Path) -> None:
    for index, rows in enumerate(parts()):
        np.save(folder / f"{index:02}.npy", np.array(rows, np.int32))


def _hugging_face(folder: Path, streams: bool) -> rx.data.Rows:
    import datasets

    dataset = datasets.Dataset.from_dict({"n": list(range(ROWS))})
    return rx.data.from_hugging_face(dataset.to_iterable_dataset(num_shards=5) if streams else dataset).map(_number)


def _records(folder: Path) -> rx.data.Rows:
    return rx.data.read_tfrecord(str(folder / "*.tfrecord"), FEATURES).map(_number)


#: How the files of a kind are written, if it has some.
WRITE: dict[str, Callable[[Path], None]] = {
    "TFRecord": tfrecord,
    "TFRecord, gzip": lambda folder: tfrecord(folder, pack=gzip.compress),
    "TFRecord, one file": lambda folder: tfrecord(folder, (ROWS,)),
    "ArrayRecord": array_record,
    "Parquet": parquet,
    "WebDataset": webdataset,
    "CSV": csv,
    "JSON lines": json_lines,
    "images": images,
    "texts": texts,
    "tokens": tokens,
    "NumPy": numpy,
}
#: And read.
OPEN: dict[str, Callable[[Path], rx.data.Rows]] = {
    "TFRecord": _records,
    "TFRecord, gzip": _records,
    "TFRecord, one file": _records,
    "ArrayRecord": lambda folder: rx.data.read_array_record(str(folder / "*.array_record"), FEATURES).map(_number),
    "Parquet": lambda folder: rx.data.read_parquet(str(folder / "*.parquet"), ["n"]).map(_number),
    "Hugging Face": lambda folder: _hugging_face(folder, streams=False),
    "Hugging Face, streaming": lambda folder: _hugging_face(folder, streams=True),
    "WebDataset": lambda folder: rx.data.read_webdataset(str(folder / "{00..05}.tar")).map(
        lambda row: np.int32(row["json"]["n"])
    ),
    "CSV": lambda folder: rx.data.read_csv(str(folder / "*.csv")).map(_number),
    "JSON lines": lambda folder: rx.data.read_json_lines(str(folder / "*.jsonl*")).map(_number),
    "images": lambda folder: rx.data.read_images(str(folder), (4, 4)).map(lambda row: np.int32(row[0][0, 0, 0])),
    "texts": lambda folder: rx.data.read_texts(str(folder)).map(lambda row: np.int32(row[0])),
    "tokens": lambda folder: rx.data.read_tokens(str(folder / "*.bin"), 3).map(lambda row: np.int32(row[0][0] // 3)),
    "NumPy": lambda folder: rx.data.read_numpy(str(folder / "*.npy")),
    "in memory": lambda folder: rx.data.Rows([np.int32(n) for n in range(ROWS)]),
}


def make(kind: str, folder: Path) -> rx.data.Rows:
    """Writes the files of a kind, and opens them."""
    WRITE.get(kind, lambda _: None)(folder)
    return OPEN[kind](folder)


class Counted:
    """Files of so many rows; row n of file f is 100 f + n."""

    def __init__(self, sizes=SIZES):
        self.files = [f"file{index}" for index in range(len(sizes))]
        self._sizes = sizes

    def read(self, file, first):
        return iter([100 * file + n for n in range(first, self._sizes[file])])
