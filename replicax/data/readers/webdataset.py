"""WebDataset: samples in tar files, whose members' names are alike up to their ending."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from typing import IO, Any, Self

import numpy as np

from replicax.data.extras import needed
from replicax.data.readers.files import Cache, Paths, listed, opened
from replicax.data.readers.images import IMAGE_ENDINGS, decode_image
from replicax.data.rows import Rows
from replicax.errors import DataError


def read_webdataset(files: Paths, *, decode: bool = True, cache: Cache | None = None) -> Rows:
    """Returns the samples of WebDataset's tar files: dicts from endings to what the members hold.

    Args:
        files: A path, a pattern such as `train-*.tar`, braces (`train-{000..099}.tar`), a url, or a list of them.
        decode: Whether members are decoded by their endings: images to uint8 arrays, `.cls` and `.id` to ints, `.json`,
            `.npy` and `.txt` to what they hold. Others stay bytes. (Pickles are never read.)
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: No file matches, or a package is missing.
        DataError: While iterating: a file is gone or damaged, or a member cannot be decoded.

    Example:
        >>> rows = rx.data.read_webdataset("train-{000..099}.tar")  # doctest: +SKIP
        >>> pairs = rows.map(lambda row: (row["jpg"], row["cls"])).shuffle(seed=1).batch(256)  # doctest: +SKIP
    """
    wds = needed("webdataset.tariterators", "rx.data.read_webdataset", "webdataset")
    expand = needed("braceexpand", "rx.data.read_webdataset", "webdataset").braceexpand
    given = [files] if isinstance(files, str) or not isinstance(files, (list, tuple)) else files
    names = listed([name for each in given for name in expand(str(each))])
    return Rows(_Tars(names, decode, cache, wds))


class _Tars:
    """The samples of tar files, as dicts of bytes."""

    def __init__(self, files: list[str], decode: bool, cache: Cache | None, wds: Any):
        self.files, self._decode, self._cache, self._wds = files, decode, cache, wds

    def read(self, file: int, first: int) -> Iterator[dict[str, Any]]:
        """Yields the samples of a file from number `first` on."""
        with opened(self.files[file], self._cache) as stream:
            for number, sample in enumerate(self._wds.group_by_keys(_members(stream))):
                if number >= first:
                    yield sample

    def row_of(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Returns a sample with its members decoded."""
        row = {name: value for name, value in sample.items() if not (name.startswith("__") and name != "__key__")}
        if self._decode:
            return {name: value if name == "__key__" else _decoded(name, value) for name, value in row.items()}
        return row


class _StrictHead(tarfile.TarInfo):
    """A head in a tar file. Python's module takes a damaged one, or none, for the end of the file."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            if type(error).__name__ == "EOFHeaderError":  # The mark at the end.
                raise
            raise DataError(f"the tar file is damaged or cut off ({error}).") from error


def _members(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """Yields the files in a tar file, as `webdataset.tariterators.group_by_keys` takes them."""
    is_packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    unpacked: Any = gzip.GzipFile(fileobj=stream) if is_packed else stream
    with tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_StrictHead) as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # It would keep them all.
            data = tar.extractfile(member) if member.isreg() else None
            if data is not None:
                yield {"fname": member.name, "data": data.read(), "__url__": ""}


def _decoded(name: str, value: bytes) -> Any:
    ending = name.rpartition(".")[2].lower()
    try:
        if ending in IMAGE_ENDINGS:
            return decode_image(value)
        if ending in ("cls", "cls2", "index", "inx", "id"):
            return int(value)
        if ending in ("json", "jsn"):
            return json.loads(value)
        if ending in ("txt", "text", "transcript"):
            return value.decode()
        if ending == "npy":
            return np.load(io.BytesIO(value), allow_pickle=False)
    except DataError as error:
        raise DataError(error.reason, feature=name) from error
    except Exception as error:
        raise DataError(f"{type(error).__name__}: {error}", feature=name) from error
    return value
