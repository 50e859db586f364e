"""Named arrays in a directory, in Orbax's format, with their metadata.

Each process writes the parts that its devices hold. A directory appears under its name when everything is in it, never
before. Reading runs no code from the files: there is no pickle in them.

Orbax's own checkpointers wait for each other through computations on the devices, and a process whose disk is full
leaves the others waiting. So only Orbax's handler is used here, for the arrays' files; the processes meet in
`replicax.checkpoint.meeting`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

import replicax.health as health
from replicax.checkpoint.meeting import Meeting
from replicax.checkpoint.metadata import (
    Entry,
    Metadata,
    check_files,
    complete,
    read_metadata,
    sync_folder,
    write_durably,
)
from replicax.errors import CheckpointError

Directory = str | os.PathLike[str]

UNFINISHED = ".unfinished"  # how the names of directories end in which something is being written, or deleted
TIMEOUT_S = 600.0
_STATE = "state-{:05d}.json"


@dataclasses.dataclass(frozen=True)
class Contents:
    """What a checkpoint is to hold.

    Attributes:
        arrays: Arrays by name; over a mesh of several processes each of them has its view of the same arrays.
        state: What JSON can hold, by name, as this process has it.
        step: The training step.
        notes: Small values that belong to the checkpoint as a whole.
    """

    arrays: Mapping[str, Any]
    state: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    step: int | None = None
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def write_arrays(directory: Directory, arrays: Mapping[str, Any]) -> Path:
    """Writes arrays to a new directory and returns its absolute path, when all of it is on disk.

    Args:
        directory: Where to; it must not exist. With several processes, a place that all of them see.
        arrays: Arrays by name; over a mesh of several processes each of them passes its view of the same arrays.

    Raises:
        CheckpointError: The directory exists already, cannot be written, or there are no arrays.
    """
    if not arrays:
        raise CheckpointError(f"There are no arrays to write to {Path(directory).absolute()}.")
    return write(directory, Contents(arrays))


def write(directory: Directory, contents: Contents) -> Path:
    """Writes a checkpoint to a new directory and returns its absolute path; see `write_arrays`."""
    path = Path(directory).absolute()
    if path.exists():
        raise CheckpointError(
            f"{path} exists already. A checkpoint is written to a new directory: choose another name."
        )
    return write_in_place(path, contents, Meeting(f"Writing the checkpoint {path}", TIMEOUT_S))


@health.phase(health.CHECKPOINT)
def write_in_place(
    path: Path, contents: Contents, meeting: Meeting, committed: Callable[[], None] | None = None
) -> Path:
    """Writes a checkpoint; one that has the name already is replaced when the new one is complete.

    Args:
        path: Where to; the parent directory is made.
        contents: What it holds.
        meeting: Where the processes that write it meet.
        committed: Called by the chief when it is complete and durable, before the other processes are told.

    Raises:
        CheckpointError: It could not be written, here or in another process, or another process did not come.
    """

    def commit() -> None:
        if meeting.is_chief:
            _commit(staging, path, contents)
            if committed is not None:
                committed()

    staging = path.parent / meeting.hear_chief("name", f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        _together(meeting, "directory made", path, lambda: staging.mkdir(parents=True) if meeting.is_chief else None)
        _together(meeting, "parts written", path, lambda: _write_parts(staging, contents))
        _together(meeting, "committed", path, commit)
    except BaseException:
        if meeting.is_chief:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    meeting.end()
    return path


def entries(directory: Directory) -> dict[str, Entry]:
    """Returns the names, shapes and dtypes of the arrays in a checkpoint; reads none of their numbers.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    return dict(read_metadata(directory).arrays)


def checked_metadata(directory: Directory) -> Metadata:
    """Returns what a checkpoint says of itself, after a look whether its files are all there.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    metadata = read_metadata(directory)
    check_files(Path(directory).absolute(), metadata)
    return metadata


@health.phase(health.CHECKPOINT)
def read_arrays(
    directory: Directory, wanted: Mapping[str, jax.ShapeDtypeStruct], metadata: Metadata | None = None
) -> dict[str, Any]:
    """Returns arrays of a checkpoint; each device reads its own parts.

    Args:
        directory: Where the checkpoint is.
        wanted: For each name the shape, the dtype to convert to and the sharding; without a sharding a NumPy array is
            returned.
        metadata: What `checked_metadata` has returned, if it has been called.

    Raises:
        CheckpointError: There is no complete checkpoint, or it has no array of that name and shape.
    """
    path = Path(directory).absolute()
    found = (metadata or checked_metadata(path)).arrays
    _check_wanted(path, found, wanted)
    read = {name: _empty(spec) for name, spec in wanted.items() if not found[name].folder}
    folders = {found[name].folder: spec for name, spec in wanted.items() if found[name].folder}
    try:
        values = _orbax_restore(path, [entry.folder for entry in found.values() if entry.folder], folders)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"The checkpoint {path} could not be read: {error}") from error
    return {name: read[name] if name in read else values[found[name].folder] for name in wanted}


@health.phase(health.CHECKPOINT)
def read_state(directory: Directory, metadata: Metadata | None = None) -> list[dict[str, Any]]:
    """Returns the state that each process wrote, in their order; `metadata` is as for `read_arrays`.

    Raises:
        CheckpointError: There is no complete checkpoint, or the state is damaged.
    """
    path = Path(directory).absolute()
    metadata = metadata or checked_metadata(path)
    try:
        return [json.loads((path / _STATE.format(i)).read_text()) for i in range(metadata.processes)]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} is damaged: its state cannot be read: {error}") from error


# Writing.


def _together(meeting: Meeting, stage: str, path: Path, act: Callable[[], Any]) -> None:
    """Acts, and waits until all processes have; raises in all of them if one has failed."""
    failure: BaseException | None = None
    try:
        act()
    except Exception as error:
        failure = error
    told = meeting.tell(stage, "" if failure is None else f"{type(failure).__name__}: {failure}"[:2000])
    if failure is not None:
        raise CheckpointError(f"The checkpoint {path} could not be written: {failure}") from failure
    for process, problem in enumerate(told):
        if problem:
            raise CheckpointError(f"Process {process} could not write its part of the checkpoint {path}: {problem}")


def _write_parts(staging: Path, contents: Contents) -> None:
    write_durably(staging / _STATE.format(jax.process_index()), json.dumps(dict(contents.state)))
    folders = _folders(contents.arrays)
    arrays = {folders[name]: _storable(array) for name, array in contents.arrays.items() if folders[name]}
    if arrays:
        _orbax_save(staging, arrays)


def _commit(staging: Path, path: Path, contents: Contents) -> None:
    folders = _folders(contents.arrays)
    arrays = {
        name: Entry(tuple(np.shape(array)), np.dtype(array.dtype), folders[name])
        for name, array in contents.arrays.items()
    }
    complete(staging, arrays, contents.step, contents.notes, jax.process_count())
    if path.exists():
        delete(path)
    staging.rename(path)
    sync_folder(path.parent)


def delete(path: Path) -> None:
    """Deletes a checkpoint, first under its name: what is left of it is never taken for a complete one."""
    doomed = path.parent / f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}"
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _folders(arrays: Mapping[str, Any]) -> dict[str, str]:
    """Returns a folder for each array, none for empty ones. Any string can be an array's name, but not a folder's."""
    return {
        name: f"{i:05d}-{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:80]}" if np.size(array) else ""
        for i, (name, array) in enumerate(arrays.items())
    }


def _storable(array: Any) -> Any:
    # With several processes Orbax takes an array of one process's devices for a mistake; as NumPy, the chief writes it.
    if isinstance(array, jax.Array) and array.is_fully_addressable and jax.process_count() > 1:
        return np.asarray(array)
    return array


# Orbax.


def _orbax_handler() -> Any:
    import orbax.checkpoint as ocp

    # An array's files in a folder of its own, so that a damaged file is a damaged array, not all of them.
    return ocp.PyTreeCheckpointHandler(use_ocdbt=False)


def _orbax_path(path: Path) -> Any:
    from etils import epath

    return epath.Path(path)


def _orbax_save(path: Path, arrays: Mapping[str, Any]) -> None:
    import orbax.checkpoint as ocp

    handler = _orbax_handler()
    try:
        handler.save(_orbax_path(path), args=ocp.args.PyTreeSave(dict(arrays)))
    finally:
        handler.close()


def _orbax_restore(path: Path, folders: list[str], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> Mapping[str, Any]:
    if not wanted:
        return {}
    import orbax.checkpoint as ocp

    item = {folder: wanted.get(folder, ocp.PLACEHOLDER) for folder in folders}
    arguments = {f: _restore_args(ocp, wanted[f]) if f in wanted else ocp.RestoreArgs() for f in folders}
    handler = _orbax_handler()
    try:
        return handler.restore(_orbax_path(path), args=ocp.args.PyTreeRestore(item, restore_args=arguments))
    finally:
        handler.close()


def _restore_args(ocp: Any, wanted: jax.ShapeDtypeStruct) -> Any:
    if wanted.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray, dtype=wanted.dtype)
    return ocp.ArrayRestoreArgs(sharding=wanted.sharding, dtype=wanted.dtype, global_shape=wanted.shape)


def _empty(wanted: jax.ShapeDtypeStruct) -> Any:
    if wanted.sharding is None:
        return np.zeros(wanted.shape, wanted.dtype)
    return jax.jit(lambda: jax.numpy.zeros(wanted.shape, wanted.dtype), out_shardings=wanted.sharding)()


def _check_wanted(path: Path, found: Mapping[str, Entry], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CheckpointError(f"The checkpoint {path} has no {missing}. It has: {', '.join(found)}.")
    for name, expected in wanted.items():
        if found[name].shape != tuple(expected.shape):
            raise CheckpointError(
                f"{name!r} has shape {found[name].shape} in the checkpoint {path}, expected {tuple(expected.shape)}."
            )
