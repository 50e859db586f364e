"""Weights that Keras 2 saved as HDF5: a file of weights, or of a whole model with its optimizer's.

Attributes name the layers and each layer's weights, in the order in which they were made. HDF5 has no checksums.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from replicax.tensorflow.checkpoints.tensors import Part, TensorInfo, checked_shape

if TYPE_CHECKING:
    import h5py

_CHUNK = 1 << 22
_LARGEST_RATIO = 1100  # The most that deflate saves.
_HEAP = b"GCOL\1\0\0\0"  # A collection of strings: signature, version, zeros; then its size and objects.
_FROM_H5PY = (OSError, RuntimeError, LookupError, TypeError, AttributeError, NotImplementedError)


class HDF5:
    """The weights in an HDF5 file."""

    format = "hdf5"

    def __init__(self, path: Path):
        self._path = path
        self.tensors: Mapping[str, TensorInfo] = {}
        self.layers: Mapping[str, tuple[str, ...]] = {}  # each layer's tensors, in the order of the layers
        self.optimizer: tuple[str, ...] = ()  # its tensors, in their order
        self.training_config: str | bytes = b""  # JSON of what the model was compiled with
        _check_heaps(path)
        with self._open() as file:
            weights = "model_weights/" if "model_weights" in file else ""
            size = path.stat().st_size
            self.tensors = {name: _info(name, found, size) for name, found in _datasets(file)}
            group = file[weights] if weights else file
            self.layers = {
                layer: self._named(group[layer], f"{weights}{layer}/") for layer in _names(group, "layer_names")
            }
            config = file.attrs.get("training_config", b"")
            if isinstance(config, (str, bytes)):
                self.training_config = config
            if "optimizer_weights" in file:
                self.optimizer = self._named(file["optimizer_weights"], "optimizer_weights/")

    def parts(self, name: str) -> Iterator[Part]:
        """Yields some rows of a tensor at a time."""
        with self._open() as file:
            found = file[name]
            shape, dtype = self.tensors[name].shape, self.tensors[name].dtype
            if not shape:
                yield Part((), _as(np.asarray(found[()]), dtype))
                return
            row_bytes = math.prod(shape[1:]) * found.dtype.itemsize
            rows = max(1, _CHUNK // max(row_bytes, 1))
            for row in range(0, shape[0] if row_bytes else 0, rows):
                yield Part((row, *(0 for _ in shape[1:])), _as(found[row : row + rows], dtype))

    def _named(self, group: h5py.Group, prefix: str) -> tuple[str, ...]:
        names = tuple(prefix + name for name in _names(group, "weight_names"))
        missing = [name for name in names if name not in self.tensors]
        if missing:
            raise ValueError(f"{missing[0]!r} is named, and not there")
        return names

    @contextlib.contextmanager
    def _open(self) -> Iterator[h5py.File]:
        import h5py

        try:
            with h5py.File(self._path, "r") as file:
                yield file
        except _FROM_H5PY as error:
            raise ValueError(f"it is damaged, or no file of weights: {error}") from error


def parsed_config(text: str | bytes) -> Mapping[str, object]:
    """Returns the optimizer's `class_name` and `config` of a `training_config`; empty if there is no optimizer."""
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise ValueError("the attribute training_config is too deep") from error
    found = found.get("optimizer_config") if isinstance(found, dict) else None
    return found if isinstance(found, dict) and isinstance(found.get("config"), dict) else {}


def _check_heaps(path: Path) -> None:
    """Checks the sizes in collections of strings: the HDF5 library's search never ends if free space is 0."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        begin = data.find(_HEAP)
        while begin >= 0:
            end = begin + int.from_bytes(data[begin + 8 : begin + 16], "little")
            position = begin + 16
            while position + 16 <= end:
                index = int.from_bytes(data[position : position + 2], "little")
                size = int.from_bytes(data[position + 8 : position + 16], "little")
                position += 16 + (size + 7) // 8 * 8 if index else size
                if (not index and size < 16) or position > min(end, len(data)):
                    raise ValueError(f"the strings at byte {begin} are damaged")
            begin = data.find(_HEAP, begin + 8)


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Yields the datasets by name. Each object may have one name, so that no group can contain itself."""
    import h5py

    seen = {h5py.h5o.get_info(file.id).addr}
    waiting: list[tuple[str, h5py.Group]] = [("", file)]
    while waiting:
        prefix, group = waiting.pop()
        for name in group:
            path, found = f"{prefix}{name}", group.get(name, getlink=True)
            if not isinstance(found, h5py.HardLink):
                raise ValueError(f"{path!r:.100} refers to another place")
            found = group[name]
            address = h5py.h5o.get_info(found.id).addr
            if address in seen:
                raise ValueError(f"{path!r:.100} has another name too")
            seen.add(address)
            if isinstance(found, h5py.Group):
                waiting.append((f"{path}/", found))
            elif isinstance(found, h5py.Dataset):
                yield path, found


def _info(name: str, found: h5py.Dataset, file_size: int) -> TensorInfo:
    shape, dtype = checked_shape(found.shape), _dtype(found)
    if dtype is None:
        return TensorInfo(name, shape, None, 0)
    stored, needed = found.id.get_storage_size(), math.prod(shape) * found.dtype.itemsize
    plain = found.chunks is None
    if found.is_virtual or found.external or stored > file_size or (plain and stored != needed):
        raise ValueError(f"{name!r} of shape {shape} has {stored} bytes in a file of {file_size}")
    if needed > _LARGEST_RATIO * stored:
        raise ValueError(f"{name!r} of shape {shape} cannot have been compressed to {stored} bytes")
    return TensorInfo(name, shape, dtype, stored)


def _dtype(found: h5py.Dataset) -> np.dtype | None:
    """Returns the dtype; of two opaque bytes it is bfloat16: no other dtype of Keras's is written so."""
    if found.dtype.kind in "biufc":
        return found.dtype.newbyteorder("=")
    bits = found.dtype.kind == "V" and found.dtype.names is None and found.dtype.itemsize == 2
    return np.dtype(ml_dtypes.bfloat16) if bits and found.attrs.get("dtype", "bfloat16") == "bfloat16" else None


def _as(values: np.ndarray, dtype: np.dtype | None) -> np.ndarray:
    return values if dtype is None or values.dtype.kind != "V" else values.view(dtype)


def _names(group: h5py.Group, attribute: str) -> list[str]:
    """Returns a list of names, which Keras splits if it is too long for one attribute."""
    if attribute in group.attrs:
        found = list(group.attrs[attribute])
    else:
        found, i = [], 0
        while f"{attribute}{i}" in group.attrs:
            found.extend(group.attrs[f"{attribute}{i}"])
            i += 1
    return [name.decode() if isinstance(name, bytes) else str(name) for name in found]
