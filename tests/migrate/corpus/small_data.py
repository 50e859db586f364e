"""Small arrays in the place of the data sets that the scripts beside this file load. NumPy only.

Images have one bright square whose place says the label, so that a model learns something in fifty steps.
"""

import gzip
import os
import struct
import zlib

import numpy as np

TRAIN, TEST = 640, 128


def _images(count, seed, size=28):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, size=count)
    images = rng.integers(0, 64, size=(count, size, size))
    for image, label in zip(images, labels):
        row, column = divmod(int(label), 4)
        image[2 + 8 * row : 8 + 8 * row, 1 + 7 * column : 7 + 7 * column] += 160
    return images.astype(np.uint8), labels.astype(np.uint8)


def load_data(path=None):
    """Returns `((x_train, y_train), (x_test, y_test))` like `keras.datasets.mnist.load_data`."""
    return _images(TRAIN, 1), _images(TEST, 2)


def mnist(split):
    """Returns the images `[n, 28, 28, 1]` and labels of `"train"` or `"test"`, as in TensorFlow Datasets."""
    images, labels = _images(TRAIN, 1) if split == "train" else _images(TEST, 2)
    return images[..., None], labels.astype(np.int64)


def iris():
    """Returns 120 rows of four float32 features and labels of three classes."""
    rng = np.random.default_rng(3)
    labels = np.arange(120) % 3
    features = rng.normal(size=(120, 4)) + np.eye(4)[labels] * 2 + 3
    return features.astype(np.float32), labels.astype(np.int64)


def words():
    """Returns 640 rows of 1200 word frequencies, float32, and labels of two classes."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 2, size=640)
    frequencies = rng.random((640, 1200)) * (rng.random((640, 1200)) < 0.05)
    frequencies[:, :20] += 0.5 * labels[:, None]
    return frequencies.astype(np.float32), labels.astype(np.int64)


# TFRecord files, which TensorFlow and replicax read.


def tfrecords(folder, rows, files=4, compressed=False):
    """Writes rows into files of one after the other; a row is a dict of numbers, lists of them, and bytes.

    A row that is a pair of such dicts becomes a `SequenceExample`; its second dict has a list of values for each step.
    """
    os.makedirs(folder, exist_ok=True)
    names = [os.path.join(folder, f"part-{index:05d}.tfrecord") for index in range(files)]
    share = -(-len(rows) // files)
    for index, name in enumerate(names):
        with (gzip.open if compressed else open)(name, "wb") as stream:
            for row in rows[index * share : (index + 1) * share]:
                data = _sequence_example(*row) if isinstance(row, tuple) else _field(1, _features(row))
                length = struct.pack("<Q", len(data))
                for part in (length, data):
                    stream.write(part + struct.pack("<I", _masked(_crc32c(part))))
    return names


def image_rows(rows=320, as_png=False):
    """Returns rows with the features `image` (bytes: pixels 28 x 28, or a PNG), `height`, `width` and `label`."""
    images, labels = _images(rows, 5)
    return [
        {"image": _png(image) if as_png else image.tobytes(), "height": 28, "width": 28, "label": int(label)}
        for image, label in zip(images, labels)
    ]


def sentence_rows(rows=240):
    """Returns rows with the features `words` (3 to 20 numbers below 50), `weight` (a float) and `label` (0 or 1)."""
    rng = np.random.default_rng(6)
    found = []
    for _ in range(rows):
        label = int(rng.integers(0, 2))
        words = rng.integers(1, 25, rng.integers(3, 21)) + 25 * label * (rng.random() < 0.8)
        found.append({"words": words.astype(int).tolist(), "weight": [1.0], "label": label})
    return found


def series_rows(rows=160):
    """Returns pairs of a context with `label`, and of `values` with two floats for each of 4 to 12 steps."""
    rng = np.random.default_rng(7)
    found = []
    for _ in range(rows):
        label = int(rng.integers(0, 3))
        values = rng.normal(size=(int(rng.integers(4, 13)), 2)) + label
        found.append(({"label": label}, {"values": values.astype(np.float32).tolist()}))
    return found


def _field(number, data):
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value):
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _feature(value):
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], bytes):
        return _field(1, b"".join(_field(1, each) for each in values))
    if isinstance(values[0], float):
        return _field(2, _field(1, struct.pack(f"<{len(values)}f", *values)))
    return _field(3, _field(1, b"".join(_varint(each) for each in values)))


def _features(row):
    return b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _feature(value))) for name, value in sorted(row.items())
    )


def _sequence_example(context, sequences):
    lists = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, b"".join(_field(1, _feature(each)) for each in steps)))
        for name, steps in sequences.items()
    )
    return _field(1, _features(context)) + _field(2, lists)


def _png(image):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + line.tobytes() for line in image)
    head = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")


_TABLE = []
for _number in range(256):
    for _ in range(8):
        _number = _number >> 1 ^ (0x82F63B78 if _number & 1 else 0)
    _TABLE.append(_number)


def _crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def _masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
