"""Writing named arrays to a place, with their metadata.

Each process writes the parts that its devices hold. A checkpoint appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.array_files import DESCRIPTION, TREE, Chunk, chunks_of, tree_of
from replicax.checkpoint.contents import Contents
from replicax.checkpoint.coordination import Coordination
from replicax.checkpoint.encoding import SavedArray
from replicax.checkpoint.metadata import STATE, Entry, metadata_file
from replicax.checkpoint.places import LARGEST, TO_APPEAR_S, Directory, Place, Staging, absolute, new_name, staging
from replicax.checkpoint.same_contents import compare_contents, digest_of, document_of
from replicax.errors import CheckpointError
from replicax.runtime import clock
from replicax.runtime.ending import writing

PREPARED = "what to write is known"  # The first stage: a process whose objects cannot be saved says so there.
_THREADS = min(8, os.cpu_count() or 1)
_MOST_SHOWN = 5
_UNSEEN = (
    "The checkpoint {path} is not committed: process 0 does not see {missing}, which other processes have written. All "
    "processes write their parts of a checkpoint to one directory: it must be on a file system that all of them share, "
    "or in an object store."
)
_DELETED = (
    "The checkpoint {path} is not committed: {missing} has been deleted since it was written. Another job that begins "
    "to save there takes what is unfinished for the remains of a killed one: give each a folder of its own."
)


def write_arrays(directory: Directory, arrays: Mapping[str, SavedArray]) -> Place:
    """Writes arrays to a new directory and returns its absolute path when all of them are on disk."""
    if not arrays:
        raise CheckpointError(f"There are no arrays to write to {absolute(directory)}.")
    return write(directory, Contents(arrays))


def write(directory: Directory, contents: Contents) -> Place:
    """Writes a checkpoint to a new directory and returns its absolute path; see `write_arrays`."""
    coordination = Coordination(f"Writing the checkpoint {directory}")
    save = Save(coordination, could_not_write(directory))
    save.agree(lambda: (new_directory(directory), document_of(contents.arrays, contents.state, contents.step)))
    return save.write(lambda: contents)


def could_not_write(directory: object) -> str:
    """Returns what to say when a checkpoint cannot be written."""
    return f"The checkpoint {directory} could not be written"


def new_directory(directory: Directory) -> Place:
    """Returns the absolute path of a directory that is to be made, and must not be there yet."""
    path = absolute(directory)
    if path.exists():
        raise CheckpointError(
            f"{path} exists already. A checkpoint is written to a new directory: choose another name."
        )
    return path


class Save:
    """A save that all processes make together, in three exchanges: agreed, written, committed."""

    def __init__(self, coordination: Coordination, failed: str, appear_s: float = TO_APPEAR_S):
        self._coordination, self._failed, self._appear_s = coordination, failed, appear_s

    def agree(self, prepare: Callable[[], tuple[Place, str]]) -> None:
        """Compares what all processes are about to write: the place, and a document of `same_contents`."""
        # A process that cannot save raises it in `prepare`, before anything is written or reads a value.
        own: list[tuple[Place, str]] = []

        def manifest() -> dict[str, object]:
            path, document = prepare()
            own.append((path, document))
            name = new_name(path) if self._coordination.is_chief else ""
            places = list(self._coordination.place)
            return {"directory": str(path), "place": places, "digest": digest_of(document), "name": name}

        told = self._coordination.run_and_tell(PREPARED, manifest, self._failed)
        (path, document) = own[0]
        self._coordination.compare_places([each["place"] for each in told])
        self._coordination.compare("directory", [each["directory"] for each in told])
        compare_contents(self._coordination, [each["digest"] for each in told], document)
        self.path, self.name = path, str(told[0]["name"])  # The name is of this save alone.
        self._target = staging(path, self.name)

    @activity.phase(activity.CHECKPOINT)
    @writing()
    def write(
        self,
        contents_of: Callable[[], Contents],
        committed: Callable[[], object] | None = None,
        report: Callable[[Sequence[Any]], None] | None = None,
        note: Callable[[], object] = lambda: None,
    ) -> Place:
        """Writes it, and returns its path when it is complete. `report` gets the `note` of each process at its end."""
        coordination, target = self._coordination, self._target
        files: dict[str, tuple[int, str]] = {}
        written: dict[str, tuple[int, str]] = {}  # by this process
        found: list[Contents] = []

        def commit_here() -> object:
            if coordination.is_chief:
                check_there(target, self.path, files, written, self._appear_s)
                commit(target, found[0], files, jax.process_count())
                if committed is not None:
                    committed()  # before the other processes go on
            return note()

        def write_here() -> dict[str, tuple[int, str]]:
            found.append(contents_of())
            written.update(save_files(target, found[0], coordination.is_chief, jax.process_index()))
            return written

        try:
            for own in coordination.run_and_tell("parts written", write_here, self._failed):
                files |= {name: (size, digest) for name, (size, digest) in own.items()}
            told = coordination.run_and_tell("committed", commit_here, self._failed)
        except BaseException:
            if coordination.is_chief:
                target.discard()
            raise
        coordination.end()
        if report is not None:
            report(told)
        return self.path


def save_files(target: Staging, contents: Contents, is_chief: bool, index: int) -> dict[str, tuple[int, str]]:
    """Writes what this process has of a checkpoint, and returns the size and SHA-256 of each file."""
    written: dict[str, tuple[int, str]] = {}

    def write(name: str, data: bytes) -> None:
        target.write(name, data)
        written[name] = len(data), hashlib.sha256(data).hexdigest()

    def write_chunk(folder: str, chunk: Chunk) -> None:
        for name, data in chunk.files():
            if name != DESCRIPTION or not any(chunk.start):  # One process has the first chunk of an array.
                write(f"{folder}/{name}", data)

    folders = {name: folder for name, folder in folders_of(contents.arrays).items() if folder}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="replicax-checkpoint") as pool:
        begun = [pool.submit(write, STATE.format(index), json.dumps(dict(contents.state)).encode())]
        if is_chief:
            begun.append(pool.submit(write, TREE, tree_of(sorted(folders.values()))))
        begun += [
            pool.submit(write_chunk, folder, chunk)
            for name, folder in folders.items()
            for chunk in chunks_of(_storable(contents.arrays[name]), is_chief, LARGEST)
        ]
        try:
            for each in begun:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return written


def check_there(
    target: Staging, path: Place, files: Mapping[str, tuple[int, str]], own: Mapping[str, object], seconds: float
) -> None:
    """Checks that all files are there, of which this process has written its `own`; others' may appear in `seconds`."""
    if missing := target.missing({name: size for name, (size, _) in files.items()}, seconds):
        text = _DELETED if any(name in own for name in missing) else _UNSEEN
        raise CheckpointError(text.format(path=path, missing=", ".join(missing[:_MOST_SHOWN])))


def commit(target: Staging, contents: Contents, files: Mapping[str, tuple[int, str]], processes: int) -> None:
    """Makes a checkpoint appear under its name when all is written; the ledger notes of when it is."""
    folders = folders_of(contents.arrays)
    arrays = {
        name: Entry(tuple(np.shape(array)), np.dtype(array.dtype), folders[name])
        for name, array in contents.arrays.items()
    }
    target.commit(metadata_file(arrays, files, contents.step, contents.notes, processes))
    clock.note(saved=round(contents.at, 6))


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
