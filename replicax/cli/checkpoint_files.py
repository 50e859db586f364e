"""Checkpoints as `replicax ckpt` sees them: replicax's own and TensorFlow's, which it reads without TensorFlow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

import jax
import numpy as np

from replicax.checkpoint import damaged_files, newest, read_arrays, read_metadata, read_state
from replicax.checkpoint.foreign import is_tensorflow
from replicax.checkpoint.places import MARKER, Place, absolute, place_of
from replicax.tensorflow.checkpoints import TensorFlowCheckpoint, open_checkpoint


@dataclasses.dataclass(frozen=True)
class Array:
    """An array in a checkpoint."""

    shape: tuple[int, ...]
    dtype: str  # `"string"`, or `"?"` for what only TensorFlow can read
    nbytes: int
    about: str = ""  # the variable's own name, or the variable that an optimizer keeps the array for
    shown: str = ""  # the name in a table, if it is another


@dataclasses.dataclass(frozen=True)
class Opened:
    """A checkpoint of either kind."""

    path: Place
    step: int | None  # None if the checkpoint does not record it
    arrays: Mapping[str, Array]
    written: str  # by which program, for a message
    facts: Mapping[str, object]  # further entries of the JSON
    states: Callable[[], list[str]]  # the names of all that is not an array
    files: str  # what `damaged` reads, for a message
    read: Callable[[str], np.ndarray]
    # by damaged file or array: what is wrong, and the array's name
    damaged: Callable[[], Mapping[str, tuple[str, str]]]


def opened(directory: str) -> Opened:
    """Opens replicax's own checkpoint, the newest in a folder of them, or one that TensorFlow or Keras 2 wrote."""
    path = absolute(directory)
    if not (place_of(path) / MARKER).is_file():
        found = newest(path)
        if found is not None:
            path = found.path
        elif is_tensorflow(path):
            return _of_tensorflow(open_checkpoint(path))
    return _own(path)


def _own(path: Place) -> Opened:
    metadata = read_metadata(path)
    versions = ", ".join(f"{name} {version}" for name, version in metadata.versions.items())
    folders = {entry.folder: name for name, entry in metadata.arrays.items() if entry.folder}

    def read(name: str) -> np.ndarray:
        entry = metadata.arrays[name]
        return np.asarray(read_arrays(path, {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype)})[name])

    def damaged() -> dict[str, tuple[str, str]]:
        return {file: (told, folders.get(file.partition("/")[0], "")) for file, told in damaged_files(path).items()}

    return Opened(
        path,
        metadata.step,
        {name: Array(entry.shape, entry.dtype.name, entry.nbytes) for name, entry in metadata.arrays.items()},
        f"by {metadata.processes} process(es), {versions}",
        {"processes": metadata.processes, "versions": dict(metadata.versions), "notes": dict(metadata.notes)},
        lambda: sorted(read_state(path)[0]),
        f"{len(metadata.files)} files",
        read,
        damaged,
    )


def _of_tensorflow(checkpoint: TensorFlowCheckpoint) -> Opened:
    about = _variables(checkpoint)
    arrays = {
        name: Array(info.shape, _dtype_name(info.dtype), info.nbytes, about.get(name, ""), checkpoint.shown(name))
        for name, info in sorted(checkpoint.tensors.items(), key=lambda item: _natural(checkpoint.shown(item[0])))
    }
    return Opened(
        checkpoint.path,
        checkpoint.step,
        arrays,
        f"written by TensorFlow or Keras 2 ({checkpoint.format})",
        {"format": checkpoint.format, "layers": dict(checkpoint.layers)},
        list,
        f"{len(arrays)} tensors" + (", without checksums to compare" if checkpoint.format == "hdf5" else ""),
        checkpoint.read,
        lambda: {name: (problem, name) for name, problem in checkpoint.verify().items()},
    )


def _variables(checkpoint: TensorFlowCheckpoint) -> dict[str, str]:
    """Returns, by the name of a tensor, the variable's own name; of a slot the variable that it belongs to."""
    graph = checkpoint.graph
    if graph is None:
        return {}
    names = {saved.key: saved.full_name for saved in graph.variables.values()}
    for slot in (slot for node in graph.nodes for slot in node.slots):
        saved, of = graph.variables.get(slot.node), graph.variables.get(slot.variable)
        if saved is not None and of is not None:
            names[saved.key] = f"{slot.name} of {of.full_name or graph.paths.get(slot.variable, of.key)}"
    return names


def _natural(name: str) -> list[tuple[int, str]]:
    """Returns a key by which `"2"` comes before `"10"`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,18})", name)]


def _dtype_name(dtype: np.dtype | None) -> str:
    return "?" if dtype is None else "string" if dtype.hasobject else dtype.name
