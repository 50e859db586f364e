"""The demo's data: UCI's handwritten digits, a file in this folder, and MNIST from its original files."""

from __future__ import annotations

import dataclasses
import gzip
import math
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from replicax.errors import ReplicaxError

NUM_CLASSES = 10
_DIGITS = Path(__file__).with_name("digits.npz")  # The split is part of the file: a run's seed does not change it.
_LARGEST_PIXEL = 16  # of these digits
_UNSIGNED_BYTE = 0x08  # IDX's code for the type of the values; MNIST has no other


class DataError(ReplicaxError, ValueError):
    """A file of a dataset is missing, or does not hold what it should."""


class Rows(NamedTuple):
    """Examples for training or testing."""

    images: np.ndarray  # (rows, pixels), float32, from 0 to 1
    labels: np.ndarray  # (rows,), int32, from 0 to 9

    def first(self, count: int) -> Rows:
        """Returns the first `count` rows, or all if there are fewer."""
        return Rows(self.images[:count], self.labels[:count])


@dataclasses.dataclass(frozen=True)
class Dataset:
    """Images of the digits 0 to 9."""

    name: str
    train: Rows
    test: Rows

    @property
    def pixels(self) -> int:
        """Number of values in one image."""
        return self.train.images.shape[1]

    def limited(self, rows: int) -> Dataset:
        """Returns the dataset with at most `rows` rows to train on and as many to test on."""
        return dataclasses.replace(self, train=self.train.first(rows), test=self.test.first(rows))


def load_digits() -> Dataset:
    """Loads UCI's 1797 digits of 8 x 8 pixels (see `digits_source.txt`), four fifths of each digit for training."""
    with np.load(_DIGITS) as arrays:
        train, test = (_rows(arrays[f"{part}_images"], arrays[f"{part}_labels"]) for part in ("train", "test"))
    return Dataset("Digits", train, test)


def _rows(images: np.ndarray, labels: np.ndarray) -> Rows:
    return Rows((images / _LARGEST_PIXEL).astype(np.float32), labels.astype(np.int32))


def load_mnist(folder: Path) -> Dataset:
    """Loads MNIST, 28 x 28 pixels each, from a folder of its four files, `train-images-idx3-ubyte.gz` and so on."""
    if not folder.is_dir():
        raise DataError(f"There is no folder {folder}. It should hold MNIST's four files, such as {_images('train')}.")
    return Dataset("MNIST", _mnist_rows(folder, "train"), _mnist_rows(folder, "t10k"))


def _images(part: str) -> str:
    return f"{part}-images-idx3-ubyte.gz"


def _labels(part: str) -> str:
    return f"{part}-labels-idx1-ubyte.gz"


def _mnist_rows(folder: Path, part: str) -> Rows:
    images = read_idx(folder / _images(part), ndim=3)
    labels = read_idx(folder / _labels(part), ndim=1)
    if len(images) != len(labels):
        raise DataError(f"{folder}: {_images(part)} has {len(images)} rows, but {_labels(part)} has {len(labels)}.")
    if not len(images):
        raise DataError(f"{folder / _images(part)} holds no images.")
    if labels.max() >= NUM_CLASSES:
        raise DataError(f"{folder / _labels(part)} holds the label {labels.max()}; labels go from 0 to 9.")
    return Rows(images.reshape(len(images), -1).astype(np.float32) / 255, labels.astype(np.int32))


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """Reads a gzipped IDX file of unsigned bytes; returns a uint8 array of the shape that its header states."""
    # The header: two zero bytes, the type of the values, the number of dimensions, and their sizes, big-endian uint32.
    content = _unzipped(path)
    header, magic = content[: 4 + 4 * ndim], bytes([0, 0, _UNSIGNED_BYTE, ndim])
    if header[:4] != magic:
        raise DataError(
            f"{path} is no IDX file of unsigned bytes in {ndim} dimension(s): it should begin with the bytes "
            f"{magic.hex(' ')}, but begins with {header[:4].hex(' ') or 'nothing'}."
        )
    if len(header) < 4 + 4 * ndim:
        raise DataError(f"{path} is truncated: it ends within its header, after {len(content)} bytes.")
    sizes = tuple(int(size) for size in np.frombuffer(header, ">u4", offset=4))
    expected, found = math.prod(sizes), len(content) - len(header)
    if found != expected:
        fault = "is truncated" if found < expected else "is too long"
        raise DataError(f"{path} {fault}: its header promises {sizes}, that is {expected} bytes; {found} follow.")
    return np.frombuffer(content, np.uint8, offset=len(header)).reshape(sizes)


def _unzipped(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        raise DataError(f"There is no file {path}.") from None
    except OSError as error:  # Also what gzip raises for a file that is none of its own.
        raise DataError(f"{path} cannot be read: {error}.") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged or truncated: {error}.") from error
