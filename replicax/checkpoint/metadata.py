"""What is known of a checkpoint besides its numbers: `metadata.json`, written when all else is on disk.

A directory without it is no complete checkpoint. It names each array's shape, dtype and checksum and each file's size
and checksum, so that `verify` can tell which file is damaged.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.errors import CheckpointError

FILE = "metadata.json"
_FORMAT = 1
_CHUNK = 1 << 20


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
    files = {name: (size, digest) for name, size, digest in _hashed(directory)}
    entries = {
        name: dataclasses.replace(entry, checksum=_checksum(entry.folder, files)) for name, entry in arrays.items()
    }
    versions = {"replicax": importlib.metadata.version("replicax"), "jax": jax.__version__}
    text = json.dumps(_plain(Metadata(entries, files, step, notes, processes, versions)), indent=1)
    write_durably(directory / FILE, text)
    for folder in {directory, *(directory / name for name in {os.path.dirname(name) for name in files})}:
        sync_folder(folder)


def read_metadata(directory: str | os.PathLike[str]) -> Metadata:
    """Returns what is known of a checkpoint; reads none of its numbers.

    Raises:
        CheckpointError: There is no complete checkpoint, or a later version of replicax wrote it.
    """
    path = Path(directory).absolute()
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}.")
    try:
        plain = json.loads((path / FILE).read_text())
        if plain["format"] > _FORMAT:
            raise CheckpointError(
                f"The checkpoint {path} has format {plain['format']}; this version of replicax reads up to {_FORMAT}."
            )
        return _parsed(plain)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is no complete checkpoint: there is no {FILE} in it.") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is no complete checkpoint, or was damaged: {FILE}: {error!r}") from error


def check_files(directory: Path, metadata: Metadata) -> None:
    """Checks that all files are there and have their sizes, which costs next to nothing.

    Raises:
        CheckpointError: Some are not.
    """
    damaged = [name for name, (size, _) in metadata.files.items() if _size(directory / name) != size]
    if damaged:
        raise CheckpointError(f"The checkpoint {directory} is damaged: missing or cut off: {', '.join(damaged[:5])}.")


def damaged_files(directory: str | os.PathLike[str]) -> dict[str, str]:
    """Reads all of a checkpoint and returns its damaged files, with what is wrong with each; empty if none is.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    path = Path(directory).absolute()
    damaged = {}
    for name, (size, digest) in read_metadata(path).files.items():
        found = _size(path / name)
        if found is None:
            damaged[name] = "is missing"
        elif found != size:
            damaged[name] = f"has {found} bytes instead of {size}"
        elif _digest(path / name) != digest:
            damaged[name] = "has other contents than were written"
    return damaged


def write_durably(path: Path, text: str) -> None:
    """Writes a file that is on disk, and not just on its way there, when this returns."""
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return  # Some network file systems cannot open folders; they have nothing to wait for.
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def _hashed(directory: Path) -> list[tuple[str, int, str]]:
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / FILE)
    return [(path.relative_to(directory).as_posix(), path.stat().st_size, _digest(path)) for path in paths]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _checksum(folder: str, files: Mapping[str, tuple[int, str]]) -> str:
    """Returns the checksum of an array: of the names and checksums of its files, each some process's shard."""
    own = [f"{name[len(folder) :]} {digest}" for name, (_, digest) in files.items() if name.startswith(f"{folder}/")]
    return hashlib.sha256("\n".join(own if folder else []).encode()).hexdigest()


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


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


def _parsed(plain: Mapping[str, Any]) -> Metadata:
    arrays = {
        name: Entry(tuple(entry["shape"]), np.dtype(jnp.dtype(entry["dtype"])), entry["folder"], entry["sha256"])
        for name, entry in plain["arrays"].items()
    }
    for name in [*plain["files"], *(entry.folder for entry in arrays.values())]:
        # The file may come from elsewhere: it must not lead out of its directory.
        if name.startswith("/") or ".." in name.split("/"):
            raise ValueError(f"{name!r} is no path inside of the checkpoint")
    files = {name: (int(file["bytes"]), str(file["sha256"])) for name, file in plain["files"].items()}
    return Metadata(arrays, files, plain["step"], plain["notes"], plain["processes"], plain["versions"])
