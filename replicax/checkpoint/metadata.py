"""What is known of a checkpoint besides its numbers: `metadata.json`, written when all else is on disk.

A directory without it is no complete checkpoint. It names each array's shape, dtype and checksum and each file's size
and checksum, and has a checksum of its own, so that whoever reads can tell which file is damaged (`integrity.py`).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from replicax.checkpoint.documents import digest_of, parsed, taken, taken_count, taken_dtype
from replicax.checkpoint.integrity import array_digest, hashed, sync_folder, write_durably
from replicax.errors import CheckpointError

FILE = "metadata.json"
STATE = "state-{:05d}.json"  # What each process wrote, by its number.
_FORMAT = 2
_FIRST_WITH_DIGEST = 2
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array in a checkpoint.

    Attributes:
        shape: Its shape.
        dtype: The dtype in which it is stored.
        folder: Where its files are, relative to the checkpoint; empty if it has no numbers.
        checksum: SHA-256 of the checksums of its files.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    folder: str = dataclasses.field(default="", compare=False)
    checksum: str = dataclasses.field(default="", compare=False)

    @property
    def nbytes(self) -> int:
        """Number of bytes of its numbers in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Metadata:
    """What `metadata.json` says.

    Attributes:
        arrays: The arrays by name.
        files: For each file, relative to the checkpoint, its size in bytes and SHA-256.
        step: The training step, or None.
        notes: Small values that belong to the checkpoint as a whole.
        processes: Number of processes that wrote it.
        versions: Versions of replicax and JAX that wrote it.
    """

    arrays: Mapping[str, Entry]
    files: Mapping[str, tuple[int, str]]
    step: int | None = None
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    processes: int = 1
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)


def complete(
    directory: Path, arrays: Mapping[str, Entry], step: int | None, notes: Mapping[str, Any], processes: int
) -> None:
    """Computes the checksums of what was written to a directory and writes its metadata."""
    files = hashed(directory)
    entries = {
        name: dataclasses.replace(entry, checksum=array_digest(entry.folder, files)) for name, entry in arrays.items()
    }
    versions = {"replicax": importlib.metadata.version("replicax"), "jax": jax.__version__}
    # As it will be read: in JSON a dict's keys are strings.
    plain = json.loads(json.dumps(_plain(Metadata(entries, files, step, notes, processes, versions))))
    write_durably(directory / FILE, json.dumps({**plain, "sha256": digest_of(plain)}, indent=1))
    for folder in {directory, *(directory / name for name in {os.path.dirname(name) for name in files})}:
        sync_folder(folder)


def read_metadata(directory: str | os.PathLike[str]) -> Metadata:
    """Returns what is known of a checkpoint; reads none of its numbers.

    Raises:
        CheckpointError: There is no complete checkpoint, its metadata is damaged, or a later version of replicax wrote
            it.
    """
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}.")
    try:
        plain = parsed((path / FILE).read_bytes())
        version = taken_count(plain, "format", 1)
        if version > _FORMAT:
            raise CheckpointError(
                f"The checkpoint {path} has format {version}; this version of replicax reads up to {_FORMAT}."
            )
        return _from_plain(plain, version)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is no complete checkpoint: there is no {FILE} in it.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is no complete checkpoint, or was damaged: {FILE}: {error}") from error


def _plain(metadata: Metadata) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "versions": dict(metadata.versions),
        "step": metadata.step,
        "processes": metadata.processes,
        "notes": dict(metadata.notes),
        "arrays": {
            name: {
                "shape": list(entry.shape),
                "dtype": entry.dtype.name,
                "bytes": entry.nbytes,
                "folder": entry.folder,
                "sha256": entry.checksum,
            }
            for name, entry in metadata.arrays.items()
        },
        "files": {name: {"bytes": size, "sha256": digest} for name, (size, digest) in metadata.files.items()},
    }


def _from_plain(plain: dict[str, Any], version: int) -> Metadata:
    if version >= _FIRST_WITH_DIGEST:
        digest = taken(plain, "sha256", str)
        if digest_of({key: value for key, value in plain.items() if key != "sha256"}) != digest:
            raise ValueError("it is not as it was written")
    described = taken(plain, "files", dict)
    files = {_inside(name): (taken_count(file, "bytes"), _sha256(file)) for name, file in described.items()}
    arrays = {name: _entry(name, entry, files) for name, entry in taken(plain, "arrays", dict).items()}
    processes = taken_count(plain, "processes", 1)
    # Before anybody counts to a number that somebody has made up.
    if processes > len(files) or any(STATE.format(i) not in files for i in range(processes)):
        raise ValueError(f"it lacks the state of some of {processes} processes")
    step = None if plain.get("step") is None else taken(plain, "step", int)
    return Metadata(arrays, files, step, taken(plain, "notes", dict), processes, taken(plain, "versions", dict))


def _entry(name: str, plain: Any, files: Mapping[str, tuple[int, str]]) -> Entry:
    shape, folder = taken(plain, "shape", list), taken(plain, "folder", str)
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"{name!r} has no shape, but {shape!r:.100}")
    entry = Entry(tuple(shape), taken_dtype(plain, "dtype"), folder and _inside(folder), _sha256(plain))
    if bool(folder) != (0 not in shape) or "/" in folder or entry.checksum != array_digest(folder, files):
        raise ValueError(f"{name!r} has other files than its checksum says")
    return entry


def _inside(name: str) -> str:
    """Returns the name of a file, which may come from elsewhere: it must not lead out of its directory."""
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name or not name.isascii():
        raise ValueError(f"{name!r} is no path inside of the checkpoint")
    return name


def _sha256(document: Any) -> str:
    digest = taken(document, "sha256", str)
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r:.100} is no SHA-256")
    return digest
