"""The fixtures: checkpoints that TensorFlow wrote, and what TensorFlow itself read from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

from replicax.tensorflow.checkpoints import TensorFlowCheckpoint, open_checkpoint

FIXTURES = Path(__file__).parent / "fixtures"


def fixtures() -> list[Path]:
    """Returns the folders of all fixtures."""
    return sorted(path.parent for path in FIXTURES.glob("*/fixture.json"))


def checkpoint_of(fixture: Path) -> Path:
    """Returns the path of a fixture's checkpoint, as a user would give it."""
    return fixture / json.loads((fixture / "fixture.json").read_text())["checkpoint"]


def recorded(fixture: Path) -> dict[str, np.ndarray]:
    """Returns what TensorFlow read, by name; strings as arrays of `bytes`."""
    with np.load(fixture / "tensors.npz") as arrays:
        return {
            entry["name"]: _values(arrays[entry["key"]].tobytes(), entry["dtype"], tuple(entry["shape"]))
            for entry in json.loads((fixture / "tensors.json").read_text())
        }


def different(fixture: Path) -> Iterator[str]:
    """Yields the names of tensors that replicax reads otherwise than TensorFlow did, by a single bit."""
    checkpoint, expected = open_checkpoint(checkpoint_of(fixture)), recorded(fixture)
    yield from checkpoint.tensors.keys() ^ expected.keys()
    for name in checkpoint.tensors.keys() & expected.keys():
        if not identical(checkpoint.read(name), expected[name]):
            yield name


def contents(checkpoint: TensorFlowCheckpoint) -> dict[str, np.ndarray]:
    """Returns all that can be read."""
    return {name: checkpoint.read(name) for name, info in checkpoint.tensors.items() if info.dtype is not None}


def identical(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns whether two arrays have the same shape, dtype and bits."""
    same = a.tolist() == b.tolist() if a.dtype.hasobject else a.tobytes() == b.tobytes()
    return a.shape == b.shape and a.dtype == b.dtype and same


def _values(data: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    if dtype != "string":
        return np.frombuffer(data, getattr(ml_dtypes, dtype, dtype)).reshape(shape)
    items, position = list[bytes](), 0
    while position < len(data):
        end = position + 8 + int.from_bytes(data[position : position + 8], "little")
        items.append(data[position + 8 : end])
        position = end
    values = np.empty(len(items), object)
    values[:] = items
    return values.reshape(shape)
