"""The format of safetensors: eight bytes with the length of a header of JSON, the header, and the tensors' bytes.

The header has for each tensor its dtype, its shape, and where its bytes begin and end after the header. Here all of it
is checked against the file before anything is read. Large models are in several files, which a JSON file lists.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from replicax.errors import WeightsError
from replicax.weights.regions import FileRegion

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_LENGTH = 8  # bytes that hold the header's length
_MOST_HEADER = 100_000_000  # bytes, as in the reference implementation
_METADATA = "__metadata__"

DTYPES: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_header(path: Path) -> dict[str, FileRegion]:
    """Returns where the tensors of a file are, by name; their bytes are not read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH), "little")
            if size < _LENGTH or length > min(size - _LENGTH, _MOST_HEADER):
                raise _damaged(path, f"it has {size} bytes, and its header should have {length}")
            text = file.read(length)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error}.") from error
    header = _parsed(path, text)
    header.pop(_METADATA, None)
    start = _LENGTH + length
    found = {name: _region(path, name, entry, start) for name, entry in header.items()}
    _check_bytes(path, found, start, size)
    return found


def read_tensors(path: Path) -> dict[str, FileRegion]:
    """Returns where the tensors of a model are, by name; `path` is a file, the index of several, or their folder."""
    path = _file_in(path) if path.is_dir() else path
    if path.suffix != ".json":
        return read_header(path)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error}.") from error
    places = _parsed(path, text).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise _damaged(path, "it has no 'weight_map' that gives each tensor's file")
    found: dict[str, FileRegion] = {}
    for name in sorted(set(places.values())):
        if Path(name).name != name:
            raise _damaged(path, f"it lists the file {name!r}, which is not beside it")
        tensors = read_header(path.with_name(name))
        missing = sorted(tensor for tensor, place in places.items() if place == name and tensor not in tensors)
        if missing:
            raise _damaged(path, f"it says that {missing[:3]} are in {name}, which has no such tensors")
        twice = sorted(found.keys() & tensors.keys())
        if twice:
            raise _damaged(path, f"{twice[:3]} are in {name} and in another file")
        found |= tensors
    return found


def header_of(entries: Iterable[tuple[str, tuple[int, ...], np.dtype]]) -> bytes:
    """Returns the beginning of a file, up to the bytes of the first tensor."""
    header: dict[str, object] = {_METADATA: {"format": "np"}}
    end = 0
    for name, shape, dtype in entries:
        if dtype not in _NAMES:
            raise WeightsError(f"{name!r} is {dtype}; safetensors has {', '.join(map(str, _NAMES))}.")
        start, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)  # The tensors begin at a multiple of eight bytes.
    return len(text).to_bytes(_LENGTH, "little") + text


def _file_in(folder: Path) -> Path:
    for name in (INDEX, SINGLE):
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    raise WeightsError(
        f"{folder} has no {INDEX} and no {SINGLE}. It has these files of safetensors: "
        f"{[path.name for path in found] or 'none'}."
    )


def _parsed(path: Path, text: bytes) -> dict[str, object]:
    try:
        parsed = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is no JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise _damaged(path, f"its header is {parsed!r:.40}, not tensors by name")
    return parsed


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name comes twice")
    return found


def _region(path: Path, name: str, entry: object, start: int) -> FileRegion:
    if not isinstance(entry, dict):
        raise _damaged(path, f"of {name!r} it says {entry!r:.60}")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise WeightsError(f"{name!r} in {path} has dtype {dtype!r}; known are {', '.join(DTYPES)}.")
    lengths, ends = _counts(shape), _counts(offsets)
    if lengths is None or ends is None or len(ends) != 2:
        raise _damaged(path, f"{name!r} has shape {shape!r:.40} and offsets {offsets!r:.40}")
    region = FileRegion(path, start + ends[0], lengths, DTYPES[dtype])
    if region.nbytes != ends[1] - ends[0]:
        raise _damaged(path, f"{name!r}, {dtype} of shape {shape}, takes {region.nbytes} bytes, and has {offsets}")
    return region


def _counts(value: object) -> tuple[int, ...] | None:
    """Returns a list of whole numbers of at least 0; None if it is something else."""
    if isinstance(value, list) and all(type(n) is int and n >= 0 for n in value):
        return tuple(value)
    return None


def _check_bytes(path: Path, found: Mapping[str, FileRegion], start: int, size: int) -> None:
    """Checks that the tensors lie one behind the other, from the header to the end of the file."""
    end = start
    for name, region in sorted(found.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if region.offset != end:
            raise _damaged(path, f"{name!r} begins at byte {region.offset}, and what is before it ends at {end}")
        end += region.nbytes
    if end != size:
        raise _damaged(path, f"its tensors end at byte {end}, and it has {size} bytes")


def _damaged(path: Path, what: str) -> WeightsError:
    return WeightsError(f"{path} is damaged, or was not copied completely: {what}.")
