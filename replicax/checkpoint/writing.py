"""Writing named arrays to a directory, with their metadata.

Each process writes the parts that its devices hold. A directory appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.encoding import SavedArray
from replicax.checkpoint.integrity import sync_folder, write_durably
from replicax.checkpoint.metadata import STATE, Entry, complete, set_aside, those_aside
from replicax.checkpoint.same_contents import check_same_contents
from replicax.compat.orbax import save_files
from replicax.errors import ArgumentError, CheckpointError
from replicax.runtime.ending import writing

Directory = str | os.PathLike[str]

UNFINISHED = ".unfinished"  # how the name of a directory ends while it is being written, or deleted
TIMEOUT_S = 600.0
PREPARED = "what to write is known"  # The first stage: a process whose objects cannot be saved says so there.
_SECONDS_TO_APPEAR = 30.0


def write_arrays(directory: Directory, arrays: Mapping[str, SavedArray]) -> Path:
    """Writes arrays to a new directory and returns its absolute path when all of them are on disk."""
    if not arrays:
        raise CheckpointError(f"There are no arrays to write to {Path(directory).absolute()}.")
    return write(directory, Contents(arrays))


def absolute(directory: Directory) -> Path:
    """Returns the absolute path of a directory."""
    if not isinstance(directory, (str, os.PathLike)) or not isinstance(os.fspath(directory), str):
        raise ArgumentError(f"A directory is a string or a pathlib.Path, got {directory!r:.100}.")
    return Path(directory).absolute()


def write(directory: Directory, contents: Contents) -> Path:
    """Writes a checkpoint to a new directory and returns its absolute path; see `write_arrays`."""
    coordination = Coordination(f"Writing the checkpoint {directory}", TIMEOUT_S)
    path = coordination.run(PREPARED, lambda: new_directory(directory), could_not_write(directory))
    return write_in_place(path, contents, coordination)


def could_not_write(directory: Directory) -> str:
    """Returns what to say when a checkpoint cannot be written."""
    return f"The checkpoint {directory} could not be written"


def new_directory(directory: Directory) -> Path:
    """Returns the absolute path of a directory that is to be made, and must not be there yet."""
    path = absolute(directory)
    if path.exists():
        raise CheckpointError(
            f"{path} exists already. A checkpoint is written to a new directory: choose another name."
        )
    return path


@activity.phase(activity.CHECKPOINT)
@writing()
def write_in_place(
    path: Path, contents: Contents, coordination: Coordination, committed: Callable[[], None] | None = None
) -> Path:
    """Writes a checkpoint; one that has the name already is replaced when the new one is complete."""

    def make_directory() -> None:
        if coordination.is_chief:
            staging.mkdir(parents=True)

    def commit_here() -> None:
        if coordination.is_chief:
            commit(staging, path, contents, jax.process_count())
            if committed is not None:
                committed()  # before the other processes go on

    failed = could_not_write(path)
    coordination.check_same("directory", str(path))
    coordination.check_same_place()
    check_same_contents(coordination, contents)
    staging = path.parent / coordination.from_chief("name", f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}")
    try:
        coordination.run("directory made", make_directory, failed)
        coordination.run("parts written", lambda: _write_parts(_seen(staging), contents), failed)
        coordination.run("committed", commit_here, failed)
    except BaseException:
        if coordination.is_chief:
            shutil.rmtree(staging, ignore_errors=True)
        raise
    coordination.end()
    return path


def _seen(staging: Path) -> Path:
    """Returns the directory that the chief has made when it is visible here too: a network file system may be slow."""
    deadline = time.monotonic() + _SECONDS_TO_APPEAR
    while not staging.is_dir():
        if time.monotonic() >= deadline:
            raise CheckpointError(
                f"Process {jax.process_index()} does not see {staging}, which process 0 has made. All processes write "
                "their parts of a checkpoint to one directory: it must be on a file system that all of them share."
            )
        time.sleep(0.1)
    return staging


def _write_parts(staging: Path, contents: Contents) -> None:
    write_durably(staging / STATE.format(jax.process_index()), json.dumps(dict(contents.state)))
    folders = folders_of(contents.arrays)
    arrays = {folders[name]: _storable(array) for name, array in contents.arrays.items() if folders[name]}
    if arrays:
        save_files(staging, arrays)


def commit(staging: Path, path: Path, contents: Contents, processes: int) -> None:
    """Gives a directory its name when all is written; one that has the name already is deleted after that."""
    folders = folders_of(contents.arrays)
    arrays = {
        name: Entry(tuple(np.shape(array)), np.dtype(array.dtype), folders[name])
        for name, array in contents.arrays.items()
    }
    # There is a complete checkpoint at every moment: until the new one has the name, readers find the old one by
    # `metadata.place_of`.
    complete(staging, arrays, contents.step, contents.notes, processes)
    if path.exists():
        set_aside(path)
    staging.rename(path)
    sync_folder(path.parent)
    for replaced in those_aside(path):
        delete(replaced)


def delete(path: Path) -> None:
    """Deletes a checkpoint. It is renamed first, so that its remains are never mistaken for a complete one."""
    doomed = path.parent / f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}"
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def folders_of(arrays: Mapping[str, SavedArray]) -> dict[str, str]:
    """Returns a folder for each array, `""` for empty ones. Not any string that names an array can name a folder."""
    # They are numbered in the order of the names: so all processes have the same, whatever the order of their objects.
    return {
        name: f"{i:05d}-{re.sub(r'[^A-Za-z0-9_]+', '-', name)[:80]}" if np.size(array) else ""
        for i, (name, array) in enumerate(sorted(arrays.items(), key=lambda item: item[0]))
    }


def _storable(array: SavedArray) -> jax.Array | np.ndarray:
    # With several processes Orbax refuses an array of one process's devices; as NumPy, the chief writes it.
    if isinstance(array, jax.Array) and array.is_fully_addressable and jax.process_count() > 1:
        return np.asarray(array)
    return array if isinstance(array, jax.Array) else np.asarray(array)
