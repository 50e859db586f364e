"""Files, here or in a bucket: names, patterns and urls, and a local cache with a bound."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias

from replicax.checks import checked, checked_int
from replicax.data.extras import needed
from replicax.errors import ArgumentError, DataError

#: A name of a file, a pattern such as `train-*.tfrecord`, a url such as `gs://bucket/train-*`, or several of them.
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_PATTERN = re.compile(r"[*?\[]")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_BUFFER = 1 << 20


@checked
class Cache:
    """A folder on this machine with copies of files from buckets; the ones not used for longest go first.

    Processes may share it. A file that is larger than the bound is read where it is.

    Args:
        folder: Where the copies are.
        max_bytes: How much they may take together.

    Raises:
        ArgumentError: `max_bytes` is not a positive int.

    Example:
        >>> import tempfile
        >>> rx.data.Cache(tempfile.gettempdir() + "/copies", max_bytes=10 * 2**30)
        Cache('/tmp/copies', max_bytes=10737418240)
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int):
        self._folder = Path(folder)
        self._max_bytes = checked_int("max_bytes", max_bytes, least=1)

    def local(self, url: str) -> str:
        """Returns the name of a copy of a file; of the file itself if it is here, or too large."""
        if not is_url(url):
            return url
        copy = self._folder / (hashlib.blake2b(url.encode(), digest_size=12).hexdigest() + "-" + Path(url).name[-80:])
        with contextlib.suppress(FileNotFoundError):
            os.utime(copy)  # It has been used now.
            return str(copy)
        system, path = _file_system(url)
        size = system.size(path)
        if size is None or size > self._max_bytes:
            return url
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_room(size)
        handle, partial = tempfile.mkstemp(dir=self._folder, prefix="partial-")
        try:
            with os.fdopen(handle, "wb") as target, system.open(path, "rb") as source:
                shutil.copyfileobj(source, target, _BUFFER)
            if os.path.getsize(partial) != size:
                raise DataError(f"{os.path.getsize(partial)} of {size} bytes have come.", url)
            os.replace(partial, copy)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        return str(copy)

    def _make_room(self, size: int) -> None:
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):  # Another process may have deleted it.
                if path.is_file():
                    found.append((path.stat().st_mtime, path.stat().st_size, path))
        total = size + sum(each for _, each, _ in found)
        for used, each, path in sorted(found):
            # A file that another process is copying counts; it is deleted once it is left over.
            if total > self._max_bytes and not (path.name.startswith("partial-") and used > time.time() - 3600):
                path.unlink(missing_ok=True)
                total -= each

    def __repr__(self) -> str:
        return f"Cache({str(self._folder)!r}, max_bytes={self._max_bytes})"


def is_url(path: str) -> bool:
    """Returns whether a path is a url, such as `gs://bucket/name`."""
    return bool(_URL.match(path)) and not path.startswith("file://")


def listed(paths: Paths, what: str = "files") -> list[str]:
    """Returns the names of files: those of a pattern in order, those of a list as they come.

    Raises:
        ArgumentError: There is none, or a pattern fits none.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    if not isinstance(given, Sequence) or not all(isinstance(each, (str, os.PathLike)) for each in given):
        raise ArgumentError(f"`{what}` is a path, a pattern, a url, or a list of them, got {paths!r:.100}.")
    names: list[str] = []
    for each in given:
        name = os.fspath(each).removeprefix("file://")
        # A file may have such letters in its name.
        found = [name] if not _PATTERN.search(name) or os.path.exists(name) else _matches(name)
        if not found:
            raise ArgumentError(f"No file matches {each!r}.")
        names += found
    if not names:
        raise ArgumentError(f"`{what}` names at least one file, got {paths!r}.")
    return names


def _matches(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    system, path = _file_system(pattern)
    return sorted(system.unstrip_protocol(name) for name in system.glob(path))


def opened(path: str, cache: Cache | None = None) -> IO[bytes]:
    """Opens a file for reading."""
    local = path if cache is None else cache.local(path)
    if not is_url(local):
        return open(local, "rb", buffering=_BUFFER)
    system, name = _file_system(local)
    stream: IO[bytes] = system.open(name, "rb", block_size=8 * _BUFFER)
    return stream


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = needed("fsspec", f"The url {url}")
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # fsspec says which package it needs for this protocol.
        raise ArgumentError(f"{url}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{url}: {error}") from error
    return system, path


def in_folder(folder: str) -> list[str]:
    """Returns the names of all files in a folder and below, in order."""
    if is_url(folder):
        system, path = _file_system(folder)
        return sorted(system.unstrip_protocol(name) for name in system.find(path))
    found, seen = [], {os.path.realpath(folder)}
    for at, below, names in os.walk(folder, followlinks=True):
        found += [os.path.join(at, name) for name in names]
        real = {name: os.path.realpath(os.path.join(at, name)) for name in below}
        below[:] = [name for name in below if real[name] not in seen]  # A link may lead to a folder above.
        seen.update(real.values())
    return sorted(found)
