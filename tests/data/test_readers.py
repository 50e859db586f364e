"""Files of each format: what a row holds; damaged and missing files, buckets and the cache, missing packages."""

from __future__ import annotations

import bz2
import gzip
import http.server
import io
import itertools
import json
import struct
import sys
import threading
import zlib

import numpy as np
import pytest

import replicax as rx
from replicax.data.readers import files
from replicax.data.readers.examples import _message_classes
from replicax.errors import ArgumentError, BatchError, DataError
from tests.data.row_kinds import example, framed

F = rx.data


def rows(made):
    return [row for batch in made.batch(1) for row in batch.tolist()]


def records(tmp_path, data, **options):
    (tmp_path / "a.tfrecord").write_bytes(data)
    return F.read_tfrecord(str(tmp_path / "a.tfrecord"), **options)


def sizes(made, **options):
    return [int(each) for batch in made.map(lambda record: np.int32(len(record))).batch(4, **options) for each in batch]


# TFRecord.


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zlib.compress])
def test_records_in_each_compression(tmp_path, compress):
    data = b"".join(framed(b"x" * size) for size in (0, 35615, 3, 70000, 1))  # The second begins as gzip does.
    assert sizes(records(tmp_path, compress(data))) == [0, 35615, 3, 70000, 1]
    first = framed(b"y" * 35615)
    assert sizes(records(tmp_path, compress(first))) == [35615]
    name = {bytes: "", gzip.compress: "GZIP", zlib.compress: "ZLIB"}[compress]
    assert sizes(records(tmp_path, compress(data), compression=name)) == [0, 35615, 3, 70000, 1]
    with pytest.raises(DataError, match=r"a\.tfrecord, record 0: "):
        sizes(records(tmp_path, compress(data), compression="GZIP" if name != "GZIP" else "ZLIB"))


def damage(data, at):
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def test_damaged_records(tmp_path):
    each = [framed(bytes([65 + n]) * (10 + n)) for n in range(6)]
    data = b"".join(each)
    start = len(each[0]) + len(each[1])
    in_data, in_length = damage(data, start + 14), damage(data, start)
    with pytest.raises(DataError, match=r"record 2: its checksum is wrong") as caught:
        sizes(records(tmp_path, in_data))
    assert (caught.value.file, caught.value.record) == (str(tmp_path / "a.tfrecord"), 2)
    assert sizes(records(tmp_path, in_data), on_error="skip") == [10, 11, 13, 14, 15]
    with pytest.raises(DataError, match="the checksum of its length is wrong"):
        sizes(records(tmp_path, in_length))
    assert sizes(records(tmp_path, in_length), on_error="skip") == [10, 11]
    for cut in (1, 5, 12, 17, 25):
        with pytest.raises(DataError, match="record 5: the file is cut off"):
            sizes(records(tmp_path, data[:-cut]))
        assert sizes(records(tmp_path, data[:-cut]), on_error="skip") == [10, 11, 12, 13, 14]
    packed = gzip.compress(data)
    with pytest.raises(DataError, match="compressed file is damaged or cut off"):
        sizes(records(tmp_path, packed[:-12]))
    (tmp_path / "a.tfrecord").unlink()
    with pytest.raises(DataError, match="record 0: FileNotFoundError"):
        sizes(F.read_tfrecord(str(tmp_path / "a.tfrecord")))


# Examples.

SPEC = {
    "image": F.FixedLenFeature([], "string"),
    "size": F.FixedLenFeature([2], np.int64),
    "weight": F.FixedLenFeature([], "float32", 1.5),
    "tags": F.FixedLenFeature([2], bytes, b"none"),
    "boxes": F.FixedLenSequenceFeature([2], "float32", allow_missing=True),
    "words": F.VarLenFeature("int64"),
}


def test_features_as_tensorflow_parses_them():
    found = F.parse_example(example(image=b"jpg", size=[3, 4], boxes=[1.0, 2.0, 3.0, 4.0], words=[7]), SPEC)
    assert found["image"] == b"jpg"
    assert found["size"].tolist() == [3, 4]
    assert found["size"].dtype == np.int64
    assert (found["weight"].shape, float(found["weight"]), found["weight"].dtype) == ((), 1.5, np.float32)
    assert found["tags"].tolist() == [b"none", b"none"]
    assert found["boxes"].tolist() == [[1, 2], [3, 4]]
    assert found["words"].tolist() == [7]
    empty = F.parse_example(example(image=b"", size=[0, 0]), SPEC)
    assert (empty["boxes"].shape, empty["words"].shape, empty["words"].dtype) == ((0, 2), (0,), np.int64)


class FixedLenFeature:
    """As TensorFlow's: a dtype is an object with a name."""

    class dtype:
        name = "int64"

    shape, default_value = (), None


def test_features_of_tensorflow_are_taken():
    assert F.parse_example(example(n=5), {"n": FixedLenFeature()})["n"] == 5


@pytest.mark.parametrize(
    ("record", "spec", "message"),
    [
        (example(n=5), F.FixedLenFeature([], "float32"), "dtype 'int64', not 'float32'"),
        (example(n=[5, 6]), F.FixedLenFeature([], "int64"), r"2 values, not those of shape \(\)"),
        (example(m=5), F.FixedLenFeature([], "int64"), r"does not have it; it has \['m'\]"),
        (example(m=5), F.FixedLenSequenceFeature([], "int64"), "allow_missing=False"),
        (example(n=[1, 2, 3]), F.FixedLenSequenceFeature([2], "int64"), "no whole number of shape"),
        (b"\xff\xff", F.VarLenFeature("int64"), "no tf.train.Example"),
    ],
)
def test_records_that_lack_what_is_asked_for(record, spec, message):
    with pytest.raises(DataError, match=message) as caught:
        F.parse_example(record, {"n": spec})
    assert caught.value.feature == ("" if record == b"\xff\xff" else "n")


def test_features_that_are_none():
    with pytest.raises(ArgumentError, match="'int64', 'float32' or 'string', got 'float64'"):
        F.parse_example(b"", {"n": F.FixedLenFeature([], "float64")})
    with pytest.raises(ArgumentError, match="FixedLenFeature"):
        F.parse_example(b"", {"n": "int64"})
    with pytest.raises(ArgumentError, match="one record"):
        F.parse_example([b""], {})
    with pytest.raises(ArgumentError, match="dict"):
        F.parse_example(b"", ["n"])


def test_sequence_examples():
    message = _message_classes()["SequenceExample"]()
    message.context.feature["id"].int64_list.value.append(4)
    for frame in ([1, 2], [3, 4], [5, 6]):
        message.feature_lists.feature_list["pairs"].feature.add().int64_list.value.extend(frame)
        message.feature_lists.feature_list["ragged"].feature.add().float_list.value.extend(frame[: frame[0] // 3 + 1])
    context, sequences = F.parse_sequence_example(
        message.SerializeToString(),
        {"id": F.FixedLenFeature([], "int64")},
        {
            "pairs": F.FixedLenSequenceFeature([2], "int64"),
            "ragged": F.VarLenFeature("float32"),
            "absent": F.FixedLenSequenceFeature([3], "float32", allow_missing=True),
        },
    )
    assert context["id"] == 4
    assert sequences["pairs"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert [frame.tolist() for frame in sequences["ragged"]] == [[1], [3, 4], [5, 6]]
    assert sequences["absent"].shape == (0, 3)
    with pytest.raises(DataError, match="absent"):
        F.parse_sequence_example(message.SerializeToString(), {}, {"absent": F.FixedLenSequenceFeature([], "int64")})


# Other formats.


def test_columns(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"x": [[1.0, 2.0], [3.0, 4.0]], "y": np.array([5, 6], np.int32), "name": ["a", "b"]})
    pq.write_table(table, tmp_path / "t.parquet")
    batch = F.read_parquet(str(tmp_path / "t.parquet"), ["x", "y"]).batch(2).first()
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([[1, 2], [3, 4]], [5, 6])
    with pytest.raises(DataError, match="feature 'z': there is no such column"):
        F.read_parquet(str(tmp_path / "t.parquet"), ["z"])
    with pytest.raises(rx.errors.BatchError, match="Encode them as numbers"):
        F.read_parquet(str(tmp_path / "t.parquet")).batch(2).first()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match=r"bad\.parquet: Arrow"):
        F.read_parquet(str(tmp_path / "*.parquet"))


def test_lines(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,2.5\n3,4\n")
    batch = F.read_csv(str(tmp_path / "a.csv")).batch(2).first()
    assert (batch["x"].tolist(), batch["y"].tolist()) == ([1, 3], [2.5, 4])
    (tmp_path / "b.csv").write_text("x,y\n1,2.5\n3\n")
    with pytest.raises(DataError, match=r"b\.csv, record 0: .*Expected 2 columns"):
        F.read_csv(str(tmp_path / "b.csv")).batch(2).first()
    lines = [json.dumps({"x": [n, n]}) for n in range(3)]
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    assert F.read_json_lines(str(tmp_path / "a.jsonl.gz")).batch(3).first()["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    (tmp_path / "b.jsonl").write_text(lines[0] + "\n{oh\n" + lines[2])
    with pytest.raises(DataError, match="record 1: the line is no JSON"):
        list(F.read_json_lines(str(tmp_path / "b.jsonl")).batch(1))
    assert len(list(F.read_json_lines(str(tmp_path / "b.jsonl")).batch(1, on_error="skip"))) == 2


def png(shade):
    from PIL import Image

    Image.new("RGB", (6, 4), (shade,) * 3).save(file := io.BytesIO(), "png")
    return file.getvalue()


def test_images_and_texts(tmp_path):
    for name, shade in (("cat/1", 10), ("cat/2", 20), ("dog/deep/1", 30)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.png").write_bytes(png(shade))
    (tmp_path / "loose.png").write_bytes(png(1))
    (tmp_path / "cat" / "3.txt").write_text("no image")
    x, y = F.read_images(str(tmp_path), (2, 3)).batch(9).first()
    assert (x.shape, x.dtype, y.tolist()) == ((3, 2, 3, 3), np.uint8, [0, 0, 1])
    assert x[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert F.read_images(str(tmp_path), (2, 3), classes=["dog"], channels=1).batch(9).first()[0].shape == (1, 2, 3, 1)
    with pytest.raises(ArgumentError, match="class 'bird'"):
        F.read_images(str(tmp_path), (2, 3), classes=["bird"])
    with pytest.raises(ArgumentError, match="no folders of classes"):
        F.read_images(str(tmp_path / "dog" / "deep"), (2, 3))
    (tmp_path / "cat" / "2.png").write_bytes(png(20)[:40])
    with pytest.raises(DataError, match=r"2\.png: the image cannot be decoded"):
        F.read_images(str(tmp_path), (2, 3)).batch(9).first()
    assert len(F.read_images(str(tmp_path), (2, 3)).batch(9, on_error="skip").first()[1]) == 2
    assert F.read_texts(str(tmp_path)).map(lambda row: np.int32(len(row[0]))).batch(9).first().tolist() == [8]
    with pytest.raises(ArgumentError, match="channels"):
        F.decode_image(png(1), channels=2)


def test_tars(tmp_path):
    import tarfile

    def tar(name, members):
        with tarfile.open(tmp_path / name, "w") as file:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))

    np.save(array := io.BytesIO(), np.arange(3))
    tar("0.tar", [("a.jpg", png(7)), ("a.cls", b"3"), ("a.x.npy", array.getvalue()), ("a.bin", b"raw")])
    read = []
    rows(F.read_webdataset(str(tmp_path / "{0..0}.tar")).map(lambda row: read.append(row) or np.int32(0)))
    [row] = read
    assert (row["__key__"], row["cls"], row["bin"], row["x.npy"].tolist()) == ("a", 3, b"raw", [0, 1, 2])
    assert row["jpg"].shape == (4, 6, 3)
    tar("1.tar", [("a.cls", b"3"), ("b.cls", b"three"), ("c.cls", b"5")])
    pairs = F.read_webdataset(str(tmp_path / "1.tar")).map(lambda row: row["cls"])
    with pytest.raises(DataError, match=r"1\.tar, record 1, feature 'cls': ValueError"):
        rows(pairs)
    assert [batch.tolist() for batch in pairs.batch(2, on_error="skip")] == [[3, 5]]
    data = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(data[:1300])
    with pytest.raises(DataError, match=r"1\.tar, record 0: "):
        rows(pairs)


def test_mapped_files(tmp_path):
    np.arange(11, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.save(tmp_path / "b.npy", np.arange(100, 105))
    made = F.read_tokens([str(tmp_path / "a.bin"), str(tmp_path / "b.npy")], 4)
    assert [each.tolist() for each in made.batch(9).first()[0]] == [[0, 1, 2, 3], [4, 5, 6, 7], [100, 101, 102, 103]]
    assert len(F.read_tokens(str(tmp_path / "a.bin"), 4, stride=2)) == 4
    assert F.read_tokens(str(tmp_path / "a.bin"), 4, header_bytes=2).batch(1).first()[1].tolist() == [[2, 3, 4, 5]]
    with pytest.raises(ArgumentError, match="No file has a window"):
        F.read_tokens(str(tmp_path / "a.bin"), 11)
    np.save(tmp_path / "x0.npy", np.arange(6).reshape(3, 2))
    np.save(tmp_path / "x1.npy", np.arange(6, 10).reshape(2, 2))
    np.save(tmp_path / "y.npy", np.arange(5.0))
    made = F.read_numpy({"x": str(tmp_path / "x*.npy"), "y": str(tmp_path / "y.npy")})
    batch = made.shuffle(seed=1).batch(5).first()
    assert batch["x"].tolist() == [[2 * n, 2 * n + 1] for n in batch["y"].astype(int).tolist()]
    with pytest.raises(ArgumentError, match="same number of rows, got 3 in"):
        F.read_numpy({"x": str(tmp_path / "x0.npy"), "y": str(tmp_path / "y.npy")})
    (tmp_path / "y.npy").write_bytes(b"no")
    with pytest.raises(DataError, match=r"y\.npy"):
        F.read_numpy(str(tmp_path / "y.npy"))


def test_array_records_name_their_files(tmp_path):
    from array_record.python import array_record_module

    for name in "ab":
        writer = array_record_module.ArrayRecordWriter(str(tmp_path / name), "group_size:1")
        for n in range(3):
            writer.write(name.encode() * n)
        writer.close()
    made = F.read_array_record([str(tmp_path / "a"), str(tmp_path / "b")])
    assert sizes(made) == [0, 1, 2, 0, 1, 2]
    with pytest.raises(DataError, match="b, record 2: AssertionError"):
        made.map(lambda record: (_ for _ in ()).throw(AssertionError) if record == b"bb" else 1).batch(9).first()
    with pytest.raises(DataError, match="no such file"):
        F.read_array_record(str(tmp_path / "c"))
    (tmp_path / "c").write_bytes(b"no")
    with pytest.raises(DataError, match="c: "):
        F.read_array_record(str(tmp_path / "c"))


@pytest.mark.nightly
def test_hugging_face_datasets_of_other_kinds():
    datasets = pytest.importorskip("datasets", reason="needs pip install 'replicax[hf]'")

    made = datasets.Dataset.from_dict({"x": [[1, 2], [3, 4]], "text": ["a", "b"]})
    assert F.from_hugging_face(made.select_columns("x")).batch(2).first()["x"].tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ArgumentError, match=r"several: \['test', 'train'\]"):
        F.from_hugging_face(datasets.DatasetDict(train=made, test=made))
    with pytest.raises(ArgumentError, match="got 5"):
        F.from_hugging_face(5)


# Paths.


def test_patterns_lists_and_buckets(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for n in range(4):
        memory.pipe(f"/bucket/{n}.tfrecord", framed(b"x" * n))
    made = F.read_tfrecord("memory://bucket/*.tfrecord")
    assert sizes(made) == [0, 1, 2, 3]
    assert sizes(F.read_tfrecord(["memory://bucket/3.tfrecord", "memory://bucket/1.tfrecord"])) == [3, 1]
    with pytest.raises(ArgumentError, match="No file matches 'memory://bucket/q"):
        F.read_tfrecord("memory://bucket/q*")
    with pytest.raises(ArgumentError, match="No file matches"):
        F.read_tfrecord(str(tmp_path / "*.tfrecord"))
    for wrong in (5, [], [5]):
        with pytest.raises(ArgumentError, match="files"):
            F.read_tfrecord(wrong)
    with pytest.raises(ArgumentError, match="nonsense"):
        sizes(F.read_tfrecord("nonsense://bucket/a"))
    memory.rm("/bucket/2.tfrecord")
    with pytest.raises(DataError, match=r"bucket/2\.tfrecord, record 0: FileNotFoundError"):
        sizes(made)
    assert sizes(made, on_error="skip") == [0, 1, 3]


def test_the_cache_keeps_its_bound(tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for n in range(6):
        memory.pipe(f"/cached/{n}.tfrecord", framed(b"x" * 100 * (n + 1)))
    cache = F.Cache(tmp_path, max_bytes=1000)
    made = F.read_tfrecord("memory://cached/*.tfrecord", cache=cache)
    for _ in range(2):
        assert sizes(made) == [100, 200, 300, 400, 500, 600]
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1000
    small = F.read_tfrecord("memory://cached/0.tfrecord", cache=F.Cache(tmp_path / "other", max_bytes=1000))
    assert sizes(small) == [100]
    memory.rm("/cached/0.tfrecord")
    assert sizes(small) == [100]
    tiny = F.read_tfrecord("memory://cached/5.tfrecord", cache=F.Cache(tmp_path / "tiny", max_bytes=10))
    assert sizes(tiny) == [600]
    assert not (tmp_path / "tiny").exists()
    memory.pipe("/cached/y.npy", (lambda file: (np.save(file, np.arange(3)), file.getvalue())[1])(io.BytesIO()))
    with pytest.raises(ArgumentError, match=r"cache=rx\.data\.Cache"):
        F.read_numpy("memory://cached/y.npy")
    assert rows(F.read_numpy("memory://cached/y.npy", cache=cache)) == [0, 1, 2]


@pytest.mark.parametrize(
    ("module", "read", "extra"),
    [
        ("google_crc32c", lambda: F.read_tfrecord("a"), "data"),
        ("google.protobuf", lambda: F.parse_example(b"", {}), "data"),
        ("pyarrow.parquet", lambda: F.read_parquet("a"), "data"),
        ("webdataset.tariterators", lambda: F.read_webdataset("a"), "webdataset"),
        ("PIL.Image", lambda: F.decode_image(b""), "data"),
        ("fsspec", lambda: F.read_csv("s3://a/*"), "data"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(monkeypatch, module, read, extra):
    monkeypatch.setitem(sys.modules, module, None)
    _message_classes.cache_clear()
    with pytest.raises(ArgumentError, match=rf"needs the package '{module.partition('.')[0]}'.*replicax\[{extra}\]"):
        read()


def test_lengths_that_are_absurd(tmp_path):
    import google_crc32c

    length = struct.pack("<Q", 2**62)
    crc = google_crc32c.value(length)
    data = length + struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)
    with pytest.raises(DataError, match="record 0"):
        sizes(records(tmp_path, data + b"abc"))


@pytest.mark.parametrize(("end", "packed"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_csv_may_be_compressed(tmp_path, end, packed):
    pytest.importorskip("pyarrow")
    (tmp_path / f"a.csv.{end}").write_bytes(packed(b"a,b\n1,2\n3,4\n"))
    batch = rx.data.read_csv(tmp_path / f"a.csv.{end}").batch(2).first()
    np.testing.assert_array_equal(batch["a"], [1, 3])


def test_bytes_that_end_with_zeros_are_written_as_they_are(tmp_path):
    pytest.importorskip("google_crc32c")
    name = str(tmp_path / "a.tfrecord")
    rx.data.write_tfrecord(name, [{"x": [b"a\0", b"b\0\0"], "y": np.array([], "float32"), "z": True}])
    features = {"x": rx.data.VarLenFeature("string"), "y": rx.data.VarLenFeature("float32")}
    found = []
    rx.data.read_tfrecord(name, features).map(lambda row: found.append(row) or 0).batch(1).first()
    assert list(found[0]["x"]) == [b"a\0", b"b\0\0"]
    assert found[0]["y"].dtype == "float32"
    with pytest.raises(ArgumentError, match="numbers, bytes or texts"):
        rx.data.write_tfrecord(name, [{"x": [b"a", 1]}])


def test_files_of_one_name_in_other_folders_are_other_files(tmp_path):
    names = []
    for day in ("1", "2", "3"):
        (tmp_path / day).mkdir()
        (tmp_path / day / "part-0.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
        names.append(tmp_path / day / "part-0.jsonl")
    dataset = rx.OneDeviceStrategy("cpu:0").distribute_dataset(rx.data.read_json_lines(names[:2]).batch(1))
    next(iter(dataset))
    other = rx.OneDeviceStrategy("cpu:0").distribute_dataset(rx.data.read_json_lines(names[1:]).batch(1))
    other.set_state(dataset.get_state())
    with pytest.raises(ArgumentError):
        next(iter(other))


def test_links_to_folders_above_are_not_followed(tmp_path):
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.txt").write_text(name)
    (tmp_path / "good" / "loop").symlink_to("..")
    assert len(rx.data.read_texts(tmp_path)) == 2


def test_a_token_that_int32_cannot_hold_is_an_error(tmp_path):
    np.array([1, 2, 3_000_000_000, 4], np.uint32).tofile(tmp_path / "a.bin")
    rows = rx.data.read_tokens(tmp_path / "a.bin", 3, dtype="uint32")
    with pytest.raises(DataError, match="a token is 3000000000"):
        rows.batch(1).first()


# Integers stay what they are.


def test_integers_that_devices_cannot_hold_are_an_error():
    strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
    for source in (rx.data.Rows([1, 2**40]).batch(2), [np.array([1, -(2**40)])]):
        with pytest.raises(BatchError, match=r"An integer is -?1099511627776, and devices hold int32"):
            list(strategy.distribute_dataset(source))
    with pytest.raises(BatchError, match="integers that no dtype holds together"):
        list(rx.data.Rows([1, 2**63]).batch(2))


def test_integers_of_json_lines_stay_integers(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": [1, 18446744073709551615]}\n')
    with pytest.raises(DataError, match=r"a.jsonl, record 0: integers that no dtype holds together"):
        list(rx.data.read_json_lines(tmp_path / "a.jsonl").batch(1))
    (tmp_path / "b.jsonl").write_text('{"x": [9223372036854775808]}\n')
    assert rx.data.read_json_lines(tmp_path / "b.jsonl").batch(1).first()["x"].dtype == np.uint64


def test_lists_of_several_lengths_are_padded(tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"v": [[1, 2], [3], [4, 5, 6]]}), tmp_path / "a.parquet")
    rows = rx.data.read_parquet(tmp_path / "a.parquet")
    with pytest.raises(BatchError, match=r"leaf \['v'\].*`padded_batch`"):
        list(rows.batch(3))
    assert rows.padded_batch(3).first()["v"].tolist() == [[1, 2, 0], [3, 0, 0], [4, 5, 6]]


def test_integers_with_nulls_are_not_made_floats(tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    table = pa.table({"n": pa.array([1, None, 3], pa.int32()), "x": pa.array([1.0, None, 3.0])})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("n,x\n1,1.0\n,\n3,3.0\n")
    for rows in (rx.data.read_parquet(tmp_path / "a.parquet"), rx.data.read_csv(tmp_path / "a.csv")):
        with pytest.raises(BatchError, match="dtype object"):
            list(rows.batch(3))
        filled = rows.map(lambda row: {"n": row["n"] if row["n"] is not None else np.int32(-1), "x": row["x"]})
        (batch,) = filled.batch(3)
        assert batch["n"].tolist() == [1, -1, 3]
        assert np.isnan(batch["x"][1])
    assert (
        rx.data.read_parquet(tmp_path / "a.parquet").map(lambda row: row["n"] or 0).batch(1).first().dtype == np.int32
    )


def test_files_whose_columns_have_other_dtypes(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "0.csv").write_text("x\n1\n2\n")
    (tmp_path / "1.csv").write_text("x\n1.5\n2\n")
    with pytest.raises(BatchError, match=r"1.csv differs from the first one of this pass.*float64.*int64"):
        list(rx.data.read_csv(tmp_path / "*.csv").batch(2))
    (batch, _) = rx.data.read_csv(tmp_path / "*.csv").map(lambda row: float(row["x"])).batch(2)
    assert batch.dtype == np.float64


def test_a_parquet_file_that_is_written_anew(tmp_path):
    pq, pa = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    rows = rx.data.read_parquet(tmp_path / "a.parquet")
    assert len(list(rows.batch(1))) == 2
    pq.write_table(pa.table({"n": [1, 2, 3]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="written anew"):
        list(rows.batch(1))


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda folder: rx.data.read_csv(folder / "a.csv", []), "`columns` is a list of different names"),
        (lambda folder: rx.data.read_csv(folder / "a.csv", "x"), "`columns` is a list of different names"),
        (lambda folder: rx.data.read_parquet(folder / "a.csv", ["x", "x"]), "`columns` is a list of different names"),
        (lambda folder: rx.data.read_csv(folder / "a.csv", delimiter=""), "`delimiter` is one character"),
        (lambda folder: rx.data.read_texts(folder, classes=["b", "b"]), "`classes` is a list of different names"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, read, words):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.csv").write_text("x\n1\n")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "0.txt").write_text("b")
    with pytest.raises(ArgumentError, match=words):
        read(tmp_path)


def test_streams_of_zlib_one_after_the_other(tmp_path):
    packed = b"".join(zlib.compress(framed(b"a%d" % index)) for index in range(3))
    (tmp_path / "a.tfrecord").write_bytes(packed)
    found = list(rx.data.read_tfrecord(tmp_path / "a.tfrecord").map(lambda record: int(record[1:])).batch(4))
    assert found[0].tolist() == [0, 1, 2]


# Stores.


class Bucket(http.server.BaseHTTPRequestHandler):
    """A server of one file that is busy every so often."""

    data = b"".join(framed(b"%06d" % index) for index in range(20_000))
    busy = itertools.cycle([True, True, False])

    def do_HEAD(self):
        self.answer(b"", len(self.data))

    def do_GET(self):
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = self.data[int(first) : int(last) + 1 if last else None]
        self.answer(part, len(part), f"bytes {first}-{int(first) + len(part) - 1}/{len(self.data)}")

    def answer(self, body, length, content_range=""):
        is_busy = self.command == "GET" and next(self.busy)
        self.send_response(503 if is_busy else 206 if content_range else 200)
        self.send_header("Content-Length", "0" if is_busy else str(length))
        self.send_header("Accept-Ranges", "bytes")
        if content_range and not is_busy:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(b"" if is_busy else body)

    def log_message(self, *args):
        pass


@pytest.fixture
def bucket():
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/a.tfrecord"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_busy_store_is_asked_again(bucket, tmp_path, monkeypatch):
    rows = rx.data.read_tfrecord(bucket).map(int)
    assert [int(row) for batch in rows.batch(4096) for row in batch] == list(range(20_000))
    cache = rx.data.Cache(tmp_path, max_bytes=10_000_000)
    assert rx.data.read_tfrecord(bucket, cache=cache).map(int).batch(4).first().tolist() == [0, 1, 2, 3]
    monkeypatch.setattr(Bucket, "busy", itertools.repeat(True))
    monkeypatch.setattr(files, "_TRIES", 2)
    with pytest.raises(DataError, match="503"):
        rx.data.read_tfrecord(bucket).batch(4).first()


def test_a_silent_store_is_an_error_that_the_log_announces(caplog):
    told = threading.Event()
    with pytest.raises(DataError, match=r"s3://b/x: there is no answer for 0.2 s. Can this machine reach the store"):
        files.answer("s3://b/x", told.wait, says_after_s=0.1, limit_s=0.2)
    told.set()
    assert "No answer about s3://b/x for 0.1 s" in caplog.text
    with pytest.raises(DataError, match="PermissionError: Forbidden"):
        files.answer("s3://b/x", lambda: (_ for _ in ()).throw(PermissionError("Forbidden")))
