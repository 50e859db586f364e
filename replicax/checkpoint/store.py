"""Named arrays in a directory, in Orbax's format.

Each process writes the parts that its devices hold. A directory appears under its name when everything is in it, never
before. Reading runs no code from the files: there is no pickle in them.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from replicax.errors import CheckpointError

Directory = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array in a checkpoint.

    Attributes:
        shape: Its shape.
        dtype: The dtype in which it is stored.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


def write_arrays(directory: Directory, arrays: Mapping[str, Any]) -> Path:
    """Writes arrays to a new directory and returns its absolute path, when all of it is on disk.

    Args:
        directory: Where to; it must not exist. With several processes, a place that all of them see.
        arrays: Arrays by name; over a mesh of several processes each of them passes its view of the same arrays.

    Raises:
        CheckpointError: The directory exists already, cannot be written, or there are no arrays.
    """
    path = Path(directory).absolute()
    if path.exists():
        raise CheckpointError(
            f"{path} exists already. A checkpoint is written to a new directory: choose another name."
        )
    if not arrays:
        raise CheckpointError(f"There are no arrays to write to {path}.")
    import orbax.checkpoint as ocp

    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(dict(arrays)))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} could not be written: {error}") from error
    return path


def entries(directory: Directory) -> dict[str, Entry]:
    """Returns the names, shapes and dtypes of the arrays in a checkpoint; reads none of their numbers.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    path = _existing(directory)
    import orbax.checkpoint as ocp

    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            metadata = checkpointer.metadata(path).item_metadata
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is no complete checkpoint, or was damaged: {error}") from error
    if metadata is None:
        raise CheckpointError(f"{path} is no complete checkpoint: Orbax finds no arrays in it, or not their data.")
    return {name: Entry(tuple(found.shape), np.dtype(found.dtype)) for name, found in metadata.tree.items()}


def read_arrays(directory: Directory, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
    """Returns arrays of a checkpoint; each device reads its own parts.

    Args:
        directory: Where the checkpoint is.
        wanted: For each name the shape, the dtype to convert to and the sharding; without a sharding a NumPy array is
            returned.

    Raises:
        CheckpointError: There is no complete checkpoint, or it has no array of that name and shape.
    """
    path = _existing(directory)
    found = entries(path)
    _check_wanted(path, found, wanted)
    import orbax.checkpoint as ocp

    item = {name: wanted.get(name, ocp.PLACEHOLDER) for name in found}
    restore_args = {name: _restore_args(ocp, wanted[name]) if name in wanted else ocp.RestoreArgs() for name in found}
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            read = checkpointer.restore(path, args=ocp.args.PyTreeRestore(item, restore_args=restore_args))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} could not be read: {error}") from error
    return {name: read[name] for name in wanted}


def _restore_args(ocp: Any, wanted: jax.ShapeDtypeStruct) -> Any:
    if wanted.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=wanted.dtype)
    return ocp.ArrayRestoreArgs(sharding=wanted.sharding, dtype=wanted.dtype, global_shape=wanted.shape)


def _existing(directory: Directory) -> Path:
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}.")
    return path


def _check_wanted(path: Path, found: Mapping[str, Entry], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CheckpointError(f"The checkpoint {path} has no {missing}. It has: {', '.join(found)}.")
    for name, expected in wanted.items():
        if found[name].shape != tuple(expected.shape):
            raise CheckpointError(
                f"{name!r} has shape {found[name].shape} in the checkpoint {path}, expected {tuple(expected.shape)}."
            )
