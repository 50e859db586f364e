"""The metadata of a checkpoint, `metadata.json`, which is written when everything else is on disk.

A directory without it is not a complete checkpoint. It names each array's shape, dtype and checksum and each file's
size and checksum, and has a checksum of its own, so that a reader can tell which file is damaged (`integrity.py`).
"""

from __future__ import annotations

import dataclasses
import glob
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from replicax.checkpoint.integrity import array_digest, hashed, sync_folder, write_durably
from replicax.checkpoint.json_fields import count_of, digest_of, dtype_of, field_of, parsed
from replicax.checks import is_int
from replicax.errors import CheckpointError
from replicax.version import __version__

FILE = "metadata.json"
STATE = "state-{:05d}.json"  # The state that a process wrote, by its index.
REPLACED = ".replaced"  # how the name of a checkpoint ends while another one takes its place
_FORMAT = 2
_FIRST_WITH_DIGEST = 2
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True)
class Entry:
    """An array in a checkpoint."""

    shape: tuple[int, ...]
    dtype: np.dtype  # in which it is stored
    folder: str = dataclasses.field(default="", compare=False)  # of its files; empty if it has no numbers
    checksum: str = dataclasses.field(default="", compare=False)  # SHA-256 of the checksums of its files

    @property
    def nbytes(self) -> int:
        """Number of bytes of its numbers in memory."""
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


@dataclasses.dataclass(frozen=True)
class Metadata:
    """The contents of `metadata.json`."""

    arrays: Mapping[str, Entry]
    files: Mapping[str, tuple[int, str]]  # by path relative to the checkpoint: size in bytes and SHA-256
    step: int | None = None
    notes: Mapping[str, object] = dataclasses.field(default_factory=dict)  # small values, of the checkpoint as a whole
    processes: int = 1  # that wrote it
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of replicax and JAX

    def noted_number(self, name: str) -> int | None:
        """Returns the int that is noted under a name; None if there is none."""
        noted = self.notes.get(name)
        return noted if is_int(noted) else None


def complete(
    directory: Path, arrays: Mapping[str, Entry], step: int | None, notes: Mapping[str, object], processes: int
) -> None:
    """Computes the checksums of what was written to a directory and writes its metadata."""
    files = hashed(directory)
    entries = {
        name: dataclasses.replace(entry, checksum=array_digest(entry.folder, files)) for name, entry in arrays.items()
    }
    versions = {"replicax": __version__, "jax": jax.__version__}
    # As it will be read: in JSON a dict's keys are strings.
    plain = json.loads(json.dumps(_plain(Metadata(entries, files, step, notes, processes, versions))))
    write_durably(directory / FILE, json.dumps({**plain, "sha256": digest_of(plain)}, indent=1))
    for folder in {directory, *(directory / name for name in {os.path.dirname(name) for name in files})}:
        sync_folder(folder)


def set_aside(path: Path) -> None:
    """Renames a checkpoint, so that another one can take its name; until then `place_of` finds it."""
    path.rename(path.parent / f".{path.name}.{secrets.token_hex(4)}{REPLACED}")


def those_aside(path: Path) -> list[Path]:
    """Returns what had the name `path` and was set aside."""
    found = path.parent.glob(f".{glob.escape(path.name)}.*{REPLACED}")
    return [each for each in found if name_of_replaced(each.name) == path.name]


def place_of(directory: str | os.PathLike[str]) -> Path:
    """Returns the absolute path of a checkpoint; another one than asked for if its writer died while it replaced it."""
    path = Path(directory).absolute()
    if (path / FILE).is_file():
        return path
    return next((each for each in those_aside(path) if (each / FILE).is_file()), path)


def name_of_replaced(name: str) -> str | None:
    """Returns the name that a directory had before `set_aside`; None for any other directory."""
    return name[1:].removesuffix(REPLACED).rpartition(".")[0] if name[:1] == "." and name.endswith(REPLACED) else None


def read_metadata(directory: str | os.PathLike[str]) -> Metadata:
    """Returns the metadata of a checkpoint; reads none of its numbers."""
    path = place_of(directory)
    if not path.is_dir():
        raise CheckpointError(f"There is no checkpoint {path}.")
    try:
        plain = parsed((path / FILE).read_bytes())
        version = count_of(plain, "format", 1)
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


def _plain(metadata: Metadata) -> dict[str, object]:
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


def _from_plain(plain: Mapping[str, object], version: int) -> Metadata:
    if version >= _FIRST_WITH_DIGEST:
        digest = field_of(plain, "sha256", str)
        if digest_of({key: value for key, value in plain.items() if key != "sha256"}) != digest:
            raise ValueError("it is not as it was written")
    described = field_of(plain, "files", dict)
    files = {_inside(name): (count_of(file, "bytes"), _sha256(file)) for name, file in described.items()}
    arrays = {name: _entry(name, entry, files) for name, entry in field_of(plain, "arrays", dict).items()}
    processes = count_of(plain, "processes", 1)
    # Checked before anything counts up to a number that may be made up.
    if processes > len(files) or any(STATE.format(i) not in files for i in range(processes)):
        raise ValueError(f"it lacks the state of some of {processes} processes")
    step = None if plain.get("step") is None else field_of(plain, "step", int)
    return Metadata(arrays, files, step, field_of(plain, "notes", dict), processes, field_of(plain, "versions", dict))


def _entry(name: str, plain: object, files: Mapping[str, tuple[int, str]]) -> Entry:
    shape, folder = field_of(plain, "shape", list), field_of(plain, "folder", str)
    if any(type(length) is not int or length < 0 for length in shape):
        raise ValueError(f"{name!r} has no shape, but {shape!r:.100}")
    entry = Entry(tuple(shape), dtype_of(plain, "dtype"), folder and _inside(folder), _sha256(plain))
    if bool(folder) != (0 not in shape) or "/" in folder or entry.checksum != array_digest(folder, files):
        raise ValueError(f"{name!r} has other files than its checksum says")
    return entry


def _inside(name: str) -> str:
    """Returns the name of a file. It may be forged: it must not lead out of its directory."""
    if not name or name.startswith("/") or ".." in name.split("/") or "\0" in name or not name.isascii():
        raise ValueError(f"{name!r} is not a path inside the checkpoint")
    return name


def _sha256(document: object) -> str:
    digest = field_of(document, "sha256", str)
    if not _SHA256.fullmatch(digest):
        raise ValueError(f"{digest!r:.100} is not a SHA-256")
    return digest
