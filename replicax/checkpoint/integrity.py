"""Reads the files of a checkpoint, and checks that they are as they were written.

Threads fetch the next files and compute their checksums while the numbers in the last ones are used (`read_in_turn`). A
file is read once, and what is checked is what is used.
"""

from __future__ import annotations

import collections
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from replicax.checkpoint.places import Place, names_in, wrong_files
from replicax.errors import CheckpointError

Files = Mapping[str, tuple[int, str]]  # For each file, relative to the checkpoint, its size in bytes and SHA-256.

_THREADS = min(4, os.cpu_count() or 1)
_PART = re.compile(r"\d+(\.\d+)*")  # How zarr names the files of an array's parts.


def array_digest(folder: str, files: Files) -> str:
    """Returns the checksum of an array: of the names and checksums of its files, each some process's shard."""
    own = [f"{name[len(folder) :]} {digest}" for name, (_, digest) in files.items() if name.startswith(f"{folder}/")]
    return hashlib.sha256("\n".join(own if folder else []).encode()).hexdigest()


def problems(place: Place, files: Files) -> dict[str, str]:
    """Reads files and returns those that are damaged, with what is wrong with each."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="replicax-checksums") as pool:
        found = pool.map(lambda name: _problem(place, name, files[name]), files)
        return {name: problem for name, problem in zip(files, found, strict=True) if problem}


def check_sizes(place: Place, files: Files) -> None:
    """Checks that all files exist and have their sizes, which costs next to nothing."""
    _raise_damage(place, wrong_files(place, {name: size for name, (size, _) in files.items()}))


def check_no_others(place: Place, folders: Iterable[str], files: Files) -> None:
    """Checks that the folders of arrays have no parts that were not written with them: they would be read."""
    for name in names_in(place, folders):
        if _PART.fullmatch(name.rpartition("/")[2]) and name not in files:
            _raise_damage(place, {name: "was added"})


def read_files(place: Place, files: Files, verify: bool = True) -> dict[str, bytes]:
    """Returns the contents of files, after a check that they are as they were written."""
    return next(read_in_turn(place, [files], verify), {})


def read_in_turn(place: Place, groups: Sequence[Files], verify: bool = True) -> Iterator[dict[str, bytes]]:
    """Yields the contents of groups of files, each read and checked in threads while the one before it is used."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="replicax-checksums") as pool:
        begun = collections.deque[dict[str, Future[tuple[bytes, str]]]]()
        try:
            for files in [*groups, {}]:
                begun.append({name: pool.submit(_read, place, name, files[name], verify) for name in files})
                if len(begun) > 1:
                    yield _checked(place, begun.popleft())  # Nothing but the dict holds the files.
        finally:
            pool.shutdown(cancel_futures=True)


def _checked(place: Place, begun: Mapping[str, Future[tuple[bytes, str]]]) -> dict[str, bytes]:
    found = {name: future.result() for name, future in begun.items()}
    _raise_damage(place, {name: problem for name, (_, problem) in found.items()})
    return {name: data for name, (data, _) in found.items()}


def _raise_damage(place: Place, found: Mapping[str, str]) -> None:
    damaged = [f"{name} {problem}" for name, problem in found.items() if problem]
    if damaged:
        more = f", and {len(damaged) - 5} more" if len(damaged) > 5 else ""
        raise CheckpointError(
            f"The checkpoint {place} is damaged: {', '.join(damaged[:5])}{more}. Nothing of it was restored; take "
            "an earlier one. `replicax ckpt verify` lists all damaged files."
        )


def _problem(place: Place, name: str, expected: tuple[int, str]) -> str:
    """Returns what is wrong with a file; empty if nothing is."""
    return _read(place, name, expected, verify=True)[1]


def _read(place: Place, name: str, expected: tuple[int, str], verify: bool) -> tuple[bytes, str]:
    """Returns the contents of a file, and what is wrong with them; empty if nothing is."""
    size, digest = expected
    try:
        data = (place / name).read_bytes()
    except FileNotFoundError:
        return b"", "is missing"
    except OSError as error:
        return b"", f"cannot be read: {error}"
    if len(data) != size:
        return b"", f"has {len(data)} bytes instead of {size}"
    if verify and hashlib.sha256(data).hexdigest() != digest:
        return b"", "has other contents than were written"
    return data, ""
