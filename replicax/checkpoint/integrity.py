"""Checks that the files of a checkpoint are as they were written, and writes files durably.

A restore checks while it reads: threads compute the checksums of the next files while the numbers in the last ones are
read (`checked_in_turn`). So a file is fetched from the disk once, and a damaged one is never read.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from replicax.errors import CheckpointError

Files = Mapping[str, tuple[int, str]]  # For each file, relative to the checkpoint, its size in bytes and SHA-256.

_CHUNK = 1 << 20
_THREADS = min(4, os.cpu_count() or 1)
_PART = re.compile(r"\d+(\.\d+)*")  # How zarr names the files of an array's parts.


def hashed(directory: Path) -> dict[str, tuple[int, str]]:
    """Returns the size and SHA-256 of each file in a directory."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): (path.stat().st_size, _digest(path)) for path in paths}


def array_digest(folder: str, files: Files) -> str:
    """Returns the checksum of an array: of the names and checksums of its files, each some process's shard."""
    own = [f"{name[len(folder) :]} {digest}" for name, (_, digest) in files.items() if name.startswith(f"{folder}/")]
    return hashlib.sha256("\n".join(own if folder else []).encode()).hexdigest()


def problems(directory: Path, files: Files) -> dict[str, str]:
    """Reads files and returns those that are damaged, with what is wrong with each."""
    found = {name: _problem(directory / name, *expected) for name, expected in files.items()}
    return {name: problem for name, problem in found.items() if problem}


def check_sizes(directory: Path, files: Files) -> None:
    """Checks that all files exist and have their sizes, which costs next to nothing."""
    _raise_damage(directory, {name: _wrong_size(directory / name, size) for name, (size, _) in files.items()})


def check_no_others(directory: Path, folders: Iterable[str], files: Files) -> None:
    """Checks that the folders of arrays have no parts that were not written with them: they would be read."""
    for folder in folders:
        parts = [name for name in os.listdir(directory / folder) if _PART.fullmatch(name)]
        _raise_damage(directory, {f"{folder}/{name}": "was added" for name in parts if f"{folder}/{name}" not in files})


def check(directory: Path, files: Files) -> None:
    """Reads files and checks that they are as they were written."""
    _raise_damage(directory, problems(directory, files))


def checked_in_turn(directory: Path, groups: Sequence[Files]) -> Iterator[None]:
    """Checks groups of files in threads, and yields once for each when it is found to be as it was written."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="replicax-checksums")
    try:
        begun = [
            {name: pool.submit(_problem, directory / name, *expected) for name, expected in files.items()}
            for files in groups
        ]
        for group in begun:
            _raise_damage(directory, {name: future.result() for name, future in group.items()})
            yield
    finally:
        pool.shutdown(cancel_futures=True)


def write_durably(path: Path, text: str) -> None:
    """Writes a file and returns when it is on disk, and not just on its way there."""
    with open(path, "w", encoding="utf-8") as file:
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


def _raise_damage(directory: Path, found: Mapping[str, str]) -> None:
    damaged = [f"{name} {problem}" for name, problem in found.items() if problem]
    if damaged:
        more = f", and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        raise CheckpointError(
            f"The checkpoint {directory} is damaged: {', '.join(damaged[:5])}{more}. Nothing of it was restored; take "
            "an earlier one. `replicax ckpt verify` lists all damaged files."
        )


def _problem(path: Path, size: int, digest: str) -> str:
    """Returns what is wrong with a file; empty if nothing is."""
    try:
        return _wrong_size(path, size) or ("" if _digest(path) == digest else "has other contents than were written")
    except OSError as error:
        return f"cannot be read: {error}"


def _wrong_size(path: Path, size: int) -> str:
    try:
        found = path.stat().st_size
    except OSError:
        return "is missing"
    return "" if found == size else f"has {found} bytes instead of {size}"


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
