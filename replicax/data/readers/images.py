"""Images: decoding by Pillow, and folders of them, one folder for each class; texts in folders likewise."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from replicax.data.extras import needed
from replicax.data.readers.files import Cache, in_folder, is_url, opened
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, DataError

IMAGE_ENDINGS = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "webp")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_CHANNELS = {"1": 1, "L": 1, "RGBA": 4, "LA": 4, "PA": 4}  # by Pillow's mode; others have 3


def decode_image(data: bytes, channels: int = 3, size: tuple[int, int] | None = None) -> np.ndarray:
    """Returns an image of any usual format as an array, decoded by Pillow.

    Args:
        data: The bytes of the file.
        channels: 1 (grey), 3 (RGB) or 4; 0 for as many as the image has.
        size: Height and width to resize it to, bilinearly; None for its own size. Of a large JPEG only what is needed
            is decoded.

    Returns:
        An array of uint8 of shape `(height, width, channels)`.

    Raises:
        ArgumentError: `channels` is another number, or Pillow is missing.
        DataError: It is no image, or cut off.

    Example:
        >>> import io
        >>> from PIL import Image
        >>> Image.new("RGB", (3, 2), "red").save(file := io.BytesIO(), "png")
        >>> rx.data.decode_image(file.getvalue()).shape
        (2, 3, 3)
    """
    if channels not in (0, *_MODES):
        raise ArgumentError(f"`channels` is one of {[0, *_MODES]}, got {channels!r}.")
    pil = needed("PIL.Image", "rx.data.decode_image")
    try:
        with pil.open(io.BytesIO(data)) as image:
            mode = _MODES[channels or _CHANNELS.get(image.mode, 3)]
            if size is not None:
                image.draft(mode, (size[1], size[0]))
            found = image.convert(mode)
            if size is not None and found.size != (size[1], size[0]):
                found = found.resize((size[1], size[0]), pil.Resampling.BILINEAR)
            array = np.asarray(found)
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        raise DataError(f"the image cannot be decoded ({type(error).__name__}: {error}).") from error
    return array[..., None] if array.ndim == 2 else array


def read_images(
    folder: str,
    size: tuple[int, int],
    *,
    channels: int = 3,
    classes: Sequence[str] | None = None,
    cache: Cache | None = None,
) -> Rows:
    """Returns the images of a folder that has a folder for each class: pairs of an image and the number of its class.

    As `keras.utils.image_dataset_from_directory`, without TensorFlow; images are uint8, and Pillow resizes them.

    Args:
        folder: A path or url.
        size: Height and width that the images are resized to.
        channels: 1, 3 or 4.
        classes: The names of the folders, in the order of their numbers; None for all, sorted.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: There is no image, or no folder of a class.
        DataError: While iterating: an image is gone or damaged.

    Example:
        >>> rows = rx.data.read_images("flowers", (224, 224))  # doctest: +SKIP
        >>> model.fit(rows.shuffle(seed=1).batch(64), epochs=3)  # doctest: +SKIP
    """
    return Rows(_Labelled(folder, IMAGE_ENDINGS, classes, lambda data: decode_image(data, channels, size), cache))


def read_texts(folder: str, *, classes: Sequence[str] | None = None, cache: Cache | None = None) -> Rows:
    """Returns the texts of a folder that has a folder for each class: pairs of a text and the number of its class.

    As `keras.utils.text_dataset_from_directory`, without TensorFlow. A `map` makes numbers of the texts.

    Args:
        folder: A path or url. Texts are files that end in `.txt`, in UTF-8.
        classes: The names of the folders, in the order of their numbers; None for all, sorted.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: There is no text, or no folder of a class.
        DataError: While iterating: a file is gone, or no UTF-8.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name, text in (("bad", "dull"), ("good", "a gem")):
        ...     (folder / name).mkdir()
        ...     _ = (folder / name / "0.txt").write_text(text)
        >>> rx.data.read_texts(folder).map(lambda row: (len(row[0]), row[1])).batch(2).first()
        (array([4, 5]), array([0, 1]...))
    """
    return Rows(_Labelled(folder, ("txt",), classes, lambda data: data.decode("utf-8"), cache))


class _Labelled:
    """Files in folders that name their classes."""

    def __init__(
        self,
        folder: str,
        endings: Sequence[str],
        classes: Sequence[str] | None,
        decode: Callable[[bytes], Any],
        cache: Cache | None,
    ):
        root = str(folder).rstrip("/\\")
        names = [name for name in in_folder(root) if name.rpartition(".")[2].lower() in endings]
        below = [PurePosixPath(name[len(root) :].replace("\\", "/").lstrip("/")).parts for name in names]
        found = sorted({parts[0] for parts in below if len(parts) > 1})
        self.classes = list(found if classes is None else classes)
        if isinstance(classes, str) or len(set(self.classes)) < len(self.classes):
            raise ArgumentError(f"`classes` is a list of different names, got {classes!r:.100}.")
        if absent := [each for each in self.classes if each not in found]:
            raise ArgumentError(f"{folder} has no folder with files of class {absent[0]!r}; it has {found}.")
        number = {each: index for index, each in enumerate(self.classes)}
        self._files = [
            (name, number[parts[0]])
            for name, parts in zip(names, below, strict=True)
            if len(parts) > 1 and parts[0] in number
        ]
        if not self._files:
            where = "" if is_url(root) else " (is it the right folder?)"
            raise ArgumentError(
                f"{folder} has no folders of classes with files that end in {', '.join(endings)}{where}."
            )
        self._decode, self._cache = decode, cache

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[bytes, int]:
        name, label = self._files[index]
        with opened(name, self._cache) as stream:
            return stream.read(), label

    def row_of(self, raw: tuple[bytes, int]) -> tuple[Any, np.int32]:
        data, label = raw
        return self._decode(data), np.int32(label)

    def name_of(self, index: int) -> tuple[str, None]:
        return self._files[index][0], None

    def __repr__(self) -> str:
        return f"{len(self._files)} files of {len(self.classes)} classes"
