"""The demo's data: the digits that come with the package, and files that may be anything."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import sklearn.datasets
import sklearn.model_selection

from replicax.cli.datasets import DataError, Dataset, load_digits, load_mnist, read_idx

MNIST = Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"


def idx(array: np.ndarray) -> bytes:
    """Encodes an array of bytes as an IDX file."""
    return bytes([0, 0, 8, array.ndim]) + np.asarray(array.shape, ">u4").tobytes() + array.tobytes()


def write_mnist(folder: Path, train: int = 6, test: int = 3) -> None:
    for part, rows in (("train", train), ("t10k", test)):
        images = np.arange(rows * 784, dtype=np.int64).astype(np.uint8).reshape(rows, 28, 28)
        labels = (np.arange(rows) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))


def check(dataset: Dataset, train: int, test: int, pixels: int) -> None:
    for rows, count in ((dataset.train, train), (dataset.test, test)):
        assert rows.images.shape == (count, pixels)
        assert rows.images.dtype == np.float32
        assert rows.images.min() >= 0
        assert rows.images.max() <= 1
        assert rows.labels.shape == (count,)
        assert rows.labels.dtype == np.int32


def test_digits_are_split_in_the_same_way_each_time():
    dataset = load_digits()
    check(dataset, 1437, 360, 64)
    assert dataset.train.images.max() == 1
    np.testing.assert_array_equal(dataset.test.labels, load_digits().test.labels)


def test_the_digits_are_those_of_scikit_learn_in_its_split():
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    train, test, train_labels, test_labels = sklearn.model_selection.train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.2, random_state=0, stratify=labels
    )
    dataset = load_digits()
    np.testing.assert_array_equal(dataset.train.images, train)
    np.testing.assert_array_equal(dataset.train.labels, train_labels)
    np.testing.assert_array_equal(dataset.test.images, test)
    np.testing.assert_array_equal(dataset.test.labels, test_labels)


def test_every_digit_is_in_both_parts_of_the_split():
    dataset = load_digits()
    shares = np.bincount(dataset.test.labels) / np.bincount(np.concatenate([dataset.train.labels, dataset.test.labels]))
    np.testing.assert_allclose(shares, 0.2, atol=0.01)


def test_a_limit_holds_for_each_part():
    limited = load_digits().limited(400)
    check(limited, 400, 360, 64)
    np.testing.assert_array_equal(limited.train.images, load_digits().train.images[:400])


def test_mnist_is_read_from_its_four_files(tmp_path: Path):
    write_mnist(tmp_path)
    dataset = load_mnist(tmp_path)
    check(dataset, 6, 3, 784)
    np.testing.assert_array_equal(dataset.train.images[0, :3] * 255, [0, 1, 2])
    np.testing.assert_array_equal(dataset.train.labels, range(6))


@pytest.mark.skipif(not MNIST.is_dir(), reason=f"MNIST is not at {MNIST}")
def test_the_real_mnist():
    dataset = load_mnist(MNIST)
    check(dataset, 60000, 10000, 784)
    assert dataset.train.labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert dataset.train.images.mean() == pytest.approx(0.1307, abs=1e-4)


def test_a_missing_folder_or_file_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"no folder .*nowhere"):
        load_mnist(tmp_path / "nowhere")
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match=r"no file .*t10k-labels-idx1-ubyte\.gz"):
        load_mnist(tmp_path)


GOOD = idx(np.zeros((2, 3), np.uint8))


def zipped(content: bytes) -> bytes:
    """Without the time of day: the bytes are part of a test's name, which all of pytest's workers must agree on."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not gzip at all", "cannot be read"),
        (zipped(GOOD)[:-12], "damaged or truncated"),
        (zipped(GOOD)[:10] + b"\xff" * 20, "damaged or truncated"),
        (zipped(b"PNG\n" + GOOD), "begins with 50 4e 47 0a"),
        (zipped(b""), "begins with nothing"),
        (zipped(bytes([0, 0, 13]) + GOOD[3:]), "no IDX file of unsigned bytes"),
        (zipped(GOOD[:7]), "within its header"),
        (zipped(GOOD[:-1]), r"truncated: its header promises \(2, 3\), that is 6 bytes; 5 follow"),
        (zipped(GOOD + b"\0"), "too long"),
        (zipped(GOOD[:4] + b"\xff" * 8), "truncated"),
    ],
)
def test_a_bad_file_is_told_by_name_and_fault(tmp_path: Path, content: bytes, message: str):
    path = tmp_path / "file.gz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, ndim=2)
    assert str(path) in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8), "has 6 rows, but train-labels-idx1-ubyte.gz has 5"),
        ("train-labels-idx1-ubyte.gz", np.full(6, 10, np.uint8), "the label 10"),
        ("train-images-idx3-ubyte.gz", np.zeros((6, 784), np.uint8), r"in 3 dimension\(s\)"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path: Path, name: str, array: np.ndarray, message: str):
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(gzip.compress(idx(array)))
    with pytest.raises(DataError, match=message):
        load_mnist(tmp_path)


def test_files_without_rows(tmp_path: Path):
    write_mnist(tmp_path, test=0)
    with pytest.raises(DataError, match="holds no images"):
        load_mnist(tmp_path)
