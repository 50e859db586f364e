"""Tensors in files of HDF5, also where the file is a member of a zip archive that is not compressed."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from replicax.errors import WeightsError
from replicax.weights.matching import Entry
from replicax.weights.pieces import Piece, Tensor
from replicax.weights.regions import FileRegion

if TYPE_CHECKING:
    import h5py

_ROWS_BYTES = 1 << 24  # of a compressed dataset, read at once
_LOCAL_HEADER = 30  # bytes of a member's header before its name (PKWARE's APPNOTE, 4.3.7)


@dataclass(frozen=True)
class Place:
    """Where the bytes of an HDF5 file are."""

    path: Path
    start: int = 0  # where they begin in `path`: 0, unless that is an archive
    size: int | None = None  # None: to the end

    @contextlib.contextmanager
    def opened(self) -> Iterator[h5py.File]:
        """Opens the HDF5 file in a `with` block."""
        import h5py

        if self.size is None:
            with h5py.File(self.path, "r") as file:
                yield file
            return
        with _Window(self.path, self.start, self.size) as window, h5py.File(window, "r") as file:
            yield file


@dataclass(frozen=True)
class OpenPlace:
    """An HDF5 file that is open, and whose bytes are in memory, such as a compressed member of an archive."""

    path: Path  # what it is called in messages
    file: h5py.File

    def opened(self) -> contextlib.AbstractContextManager[h5py.File]:
        """Returns the file in a `with` block, which leaves it open."""
        return contextlib.nullcontext(self.file)


@dataclass(frozen=True)
class Dataset:
    """A dataset that is not a run of bytes: compressed, in chunks, or never written. HDF5 reads some rows at a time."""

    place: Place | OpenPlace
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    rows: int  # that are read at once

    def fill(self, pieces: Sequence[Piece]) -> None:
        """Reads pieces that lie in the same rows, and each of these rows once."""
        try:
            with self.place.opened() as file:
                self._fill(file[self.name], [piece for piece in pieces if piece.values.size])
        except (OSError, KeyError, RuntimeError) as error:
            raise WeightsError(f"{self.name!r} of {self.place.path} cannot be read: {error}") from error

    def _fill(self, dataset: h5py.Dataset, pieces: Sequence[Piece]) -> None:
        if not self.shape:
            for _, values in pieces:
                np.copyto(values, self._seen(dataset[()]), casting="unsafe")
        elif pieces:
            first, last = pieces[0].bounds[0]
            for start in range(first, last, self.rows):
                block = self._seen(dataset[start : min(start + self.rows, last)])
                for bounds, values in pieces:
                    part = block[(slice(None), *(slice(*bound) for bound in bounds[1:]))]
                    np.copyto(values[start - first : start - first + len(block)], part, casting="unsafe")

    def _seen(self, values: np.ndarray) -> np.ndarray:
        return np.asarray(values).view(self.dtype) if values.dtype.kind == "V" else values


def tensor_of(dataset: h5py.Dataset, place: Place | OpenPlace) -> Tensor:
    """Returns the tensor of a dataset, which is read when the dataset has been closed."""
    # HDF5 has no bfloat16: Keras stores two bytes, and an attribute that says so.
    is_bfloat16 = dataset.attrs.get("dtype") == "bfloat16" and dataset.dtype.itemsize == 2
    dtype = np.dtype(jnp.bfloat16) if is_bfloat16 and dataset.dtype.kind == "V" else dataset.dtype
    offset = dataset.id.get_offset()
    is_run = dataset.chunks is None and dataset.dtype.kind in "fiubcV" and not _is_packed(dataset)
    if isinstance(place, Place) and offset is not None and is_run:
        return FileRegion(place.path, place.start + offset, dataset.shape, dtype)
    row = max(1, dataset.nbytes // max(1, len(dataset))) if dataset.shape else 1
    rows = max(1, _ROWS_BYTES // row)
    if dataset.chunks:  # A chunk is decompressed whole: its rows are read together.
        rows = -(-rows // dataset.chunks[0]) * dataset.chunks[0]
    return Dataset(place, dataset.name, dataset.shape, dtype, rows)


def _is_packed(dataset: h5py.Dataset) -> bool:
    """Returns whether NumPy's dtype does not say how the values lie in the file: bools are an enumeration there."""
    import h5py

    kind = dataset.id.get_type()
    return not isinstance(kind, (h5py.h5t.TypeFloatID, h5py.h5t.TypeIntegerID, h5py.h5t.TypeOpaqueID)) or (
        kind.get_size() != dataset.dtype.itemsize
    )


def entries_of(file: h5py.File) -> dict[str, Entry]:
    """Returns all datasets of an HDF5 file by name."""
    import h5py

    found: dict[str, Entry] = {}

    def note(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            layer = item.parent.attrs.get("name")
            label = f"{name} ({layer})" if isinstance(layer, str) and layer not in name.split("/") else name
            found[f"/{name}"] = Entry(f"/{name}", label, item.shape)

    file.visititems(note)
    return found


def member_place(archive: zipfile.ZipFile, name: str) -> Place | None:
    """Returns where a member of an archive lies that is not compressed; None if it is, or the archive is no file."""
    path = Path(archive.filename or "")
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or not path.is_file():
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER)
        length = os.fstat(file.fileno()).st_size
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = info.header_offset + _LOCAL_HEADER + names
    if header[:4] != b"PK\x03\x04" or start + info.file_size > length:
        raise WeightsError(f"{path} is damaged: its member {name!r} does not lie where its list of members says.")
    return Place(path, start, info.file_size)


def opened_member(archive: zipfile.ZipFile, name: str) -> io.RawIOBase | None:
    """Opens a member of an archive that is not compressed, where it lies; None if it is, or the archive is no file."""
    place = member_place(archive, name)
    return None if place is None or place.size is None else _Window(place.path, place.start, place.size)


class _Window(io.RawIOBase):
    """The bytes of a file from `start` on, `size` of them, as a file."""

    def __init__(self, path: Path, start: int, size: int):
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115  # closed with the window
        self._start, self._size, self._position = start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def readinto(self, memory: memoryview) -> int:  # type: ignore[override]  # what `io` passes
        wanted = memoryview(memory).cast("B")[: max(0, self._size - self._position)]
        self._file.seek(self._start + self._position)  # Windows has no `preadv`.
        count = self._file.readinto(wanted) if wanted else 0
        self._position += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
