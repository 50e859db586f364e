"""The metadata of a checkpoint, `metadata.json`, which is written when everything else is on disk.

A directory without it is not a complete checkpoint. It names each array's shape, dtype and checksum and each file's
size and checksum, and has a checksum of its own, so that a reader can tell which file is damaged (`integrity.py`).
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from replicax.checkpoint.integrity import array_digest
from replicax.checkpoint.json_fields import count_of, digest_of, dtype_of, field_of, parsed
from replicax.checkpoint.places import MARKER as FILE, Directory, place_of
from replicax.checks import is_int
from replicax.errors import CheckpointError
from replicax.version import __version__

KINDS = "kinds of objects"  # the name of their note
STATE = "state-{:05d}.json"  # The state that a process wrote, by its index.
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
    written_at: float | None = None  # seconds since the epoch; None in those of earlier versions

    @property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """The meaning of the numbers of optimizers, named tuples and random keys, as `ObjectParts` has it."""
        noted = self.notes.get(KINDS)
        named = noted.items() if isinstance(noted, dict) else ()
        return {path: [*map(str, kinds)] for path, kinds in named if isinstance(kinds, list) and kinds}

    def noted_number(self, name: str) -> int | None:
        """Returns the int that is noted under a name; None if there is none."""
        noted = self.notes.get(name)
        return noted if is_int(noted) else None


def metadata_file(
    arrays: Mapping[str, Entry],
    files: Mapping[str, tuple[int, str]],
    step: int | None,
    notes: Mapping[str, object],
    processes: int,
) -> bytes:
    """Returns the contents of `metadata.json`."""
    files = dict(sorted(files.items()))  # Checksums of arrays depend on the order.
    entries = {
        name: dataclasses.replace(entry, checksum=array_digest(entry.folder, files)) for name, entry in arrays.items()
    }
    versions = {"replicax": __version__, "jax": jax.__version__}
    metadata = Metadata(entries, files, step, notes, processes, versions, time.time())
    # As it will be read: in JSON a dict's keys are strings.
    plain = json.loads(json.dumps(_plain(metadata)))
    return json.dumps({**plain, "sha256": digest_of(plain)}, indent=1).encode()


def read_metadata(directory: Directory) -> Metadata:
    """Returns the metadata of a checkpoint; reads none of its numbers."""
    path = place_of(directory)
    try:
        plain = parsed((path / FILE).read_bytes())
        version = count_of(plain, "format", 1)
        if version > _FORMAT:
            raise CheckpointError(
                f"The checkpoint {path} has format {version}; this version of replicax reads up to {_FORMAT}."
            )
        return _from_plain(plain, version)
    except FileNotFoundError as error:
        if not path.is_dir():
            raise CheckpointError(f"There is no checkpoint {path}.") from None
        raise CheckpointError(f"{path} is no complete checkpoint: there is no {FILE} in it.") from error
    except (OSError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path} is no complete checkpoint, or was damaged: {FILE}: {error}") from error


def _plain(metadata: Metadata) -> dict[str, object]:
    return {
        "format": _FORMAT,
        "versions": dict(metadata.versions),
        "written": metadata.written_at,
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
    written = None if plain.get("written") is None else field_of(plain, "written", float)
    notes, versions = field_of(plain, "notes", dict), field_of(plain, "versions", dict)
    return Metadata(arrays, files, step, notes, processes, versions, written)


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
