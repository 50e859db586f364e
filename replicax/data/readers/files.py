"""Files, here or in a bucket: names, patterns and urls, and a local cache with a bound."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import logging
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar

from replicax.checks import checked, checked_int
from replicax.data.extras import needed
from replicax.errors import ArgumentError, DataError

#: A name of a file, a pattern such as `train-*.tfrecord`, a url such as `gs://bucket/train-*`, or several of them.
Paths: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_PATTERN = re.compile(r"[*?\[]")
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+://")
_BUFFER = 1 << 20
_BUSY = ("429", "500", "502", "503", "504")  # the answers of a store that has too much to do
_TRIES = 8  # in 13 s
_log = logging.getLogger(__name__)
T = TypeVar("T")


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
        size = answer(url, lambda: system.size(path))
        if size is None or size > self._max_bytes:
            return url
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_room(size)
        handle, partial = tempfile.mkstemp(dir=self._folder, prefix="partial-")
        try:
            with os.fdopen(handle, "wb") as target, opened(url) as source:
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
    return sorted(system.unstrip_protocol(name) for name in answer(pattern, lambda: system.glob(path)))


def opened(path: str, cache: Cache | None = None) -> IO[bytes]:
    """Opens a file for reading."""
    local = path if cache is None else cache.local(path)
    if not is_url(local):
        return open(local, "rb", buffering=_BUFFER)
    return io.BufferedReader(_Stored(local), _BUFFER)


class _Stored(io.RawIOBase):
    """A file in a store: what fails on the way is tried again, from where the reading is."""

    def __init__(self, url: str):
        self._url, self._at = url, 0
        self._system, self._name = _file_system(url)
        self._stream = self._tried(self._opened)

    def readinto(self, buffer: Any) -> int:
        def read() -> bytes:
            if self._stream.tell() != self._at:
                self._stream.seek(self._at)
            found: bytes = self._stream.read(len(buffer))
            return found

        found = self._tried(read)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._stream.size}[whence]
        self._at = base + offset
        return self._at

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        found: bool = self._stream.seekable() and self._stream.size is not None
        return found

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()

    def _opened(self) -> Any:
        return self._system.open(self._name, "rb", block_size=8 * _BUFFER)

    def _tried(self, ask: Callable[[], T]) -> T:
        for wait_s in (*(0.1 * 2**number for number in range(_TRIES - 1)), None):
            try:
                return answer(self._url, ask)
            except DataError as error:
                if wait_s is None or not _may_pass(error):
                    raise
                _log.info("%s: tried again in %g s", error, wait_s)
                time.sleep(wait_s)
        raise AssertionError


def _may_pass(error: BaseException | None) -> bool:
    """Returns whether an error of a store is one of those that go by."""
    while error is not None:
        status = getattr(error, "status", None) or getattr(error, "code", None)  # aiohttp's, gcsfs's
        if isinstance(error, ConnectionError) or str(status) in _BUSY:
            return True
        error = error.__cause__
    return False


def answer(url: str, ask: Callable[[], T], says_after_s: float = 10.0, limit_s: float = 120.0) -> T:
    """Returns what a store answers; the log says that it is slow, and there is an error when it stays silent.

    Raises:
        DataError: There is no answer, or the store refuses to give one.
    """
    found: Future[T] = Future()

    def run() -> None:
        try:
            found.set_result(ask())
        except BaseException as error:
            found.set_exception(error)

    # A daemon: a store's client may try again for hours, and no program has to wait for it at its end.
    threading.Thread(target=run, name="replicax-store", daemon=True).start()
    try:
        wait([found], says_after_s)
        if not found.done():
            _log.warning(
                "No answer about %s for %g s. It is an error after %g s: can this machine reach the store, and has it "
                "credentials?", url, says_after_s, limit_s,
            )  # fmt: skip
        return found.result(limit_s - says_after_s)
    except TimeoutError as error:
        if found.done():  # The store's own.
            raise DataError.of(error, url) from error
        raise DataError(
            f"there is no answer for {limit_s:g} s. Can this machine reach the store, and has it credentials?", url
        ) from None
    except (ImportError, ValueError, MemoryError):
        raise
    except Exception as error:
        raise DataError.of(error, url) from error


def _file_system(url: str) -> tuple[Any, str]:
    fsspec = needed("fsspec", f"The url {url}")
    try:
        system, path = answer(url, lambda: fsspec.core.url_to_fs(url))
    except ImportError as error:  # fsspec says which package it needs for this protocol.
        raise ArgumentError(f"{url}: {error}") from error
    except ValueError as error:
        raise ArgumentError(f"{url}: {error}") from error
    return system, path


def in_folder(folder: str) -> list[str]:
    """Returns the names of all files in a folder and below, in order."""
    if is_url(folder):
        system, path = _file_system(folder)
        return sorted(system.unstrip_protocol(name) for name in answer(folder, lambda: system.find(path)))
    found, seen = [], {os.path.realpath(folder)}
    for at, below, names in os.walk(folder, followlinks=True):
        found += [os.path.join(at, name) for name in names]
        real = {name: os.path.realpath(os.path.join(at, name)) for name in below}
        below[:] = [name for name in below if real[name] not in seen]  # A link may lead to a folder above.
        seen.update(real.values())
    return sorted(found)
