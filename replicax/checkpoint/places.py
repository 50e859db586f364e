"""Places of checkpoints: a folder on a disk, or a prefix of names in an object store. Here alone the two differ.

A checkpoint is seen when it is complete, and never before:

- On a disk it is written to a folder with a temporary name, which is renamed when everything is on the disk. One that
  has the name already is set aside before, and deleted after that.
- A store cannot rename. There each save writes objects below a name of its own, `path/000007-5f3a9c21/`, and nothing
  is ever overwritten; `metadata.json`, the last of them, makes the checkpoint complete. Of several complete ones the
  highest number counts, and the others are deleted. So a request that arrives twice changes nothing, and no store needs
  conditional requests (S3 and GCS both show what was written to all that ask later).

Objects are written whole, in one request each: an array's are at most `LARGEST` bytes before compression. There are no
multipart uploads that a killed process could leave behind.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import os
import random
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from replicax.errors import ArgumentError, CheckpointError

if TYPE_CHECKING:
    import tensorstore

_T = TypeVar("_T")
_P = TypeVar("_P", Path, "StorePath")

MARKER = "metadata.json"  # A checkpoint without it is not complete.
UNFINISHED = ".unfinished"  # how the name of a directory ends while it is being written, or deleted
REPLACED = ".replaced"  # how it ends while another checkpoint takes its place
LARGEST = 1 << 28
_STORES = ("gs", "s3")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<rest>.*)", re.DOTALL)
_VERSION = re.compile(r"(?P<number>\d{6,})-[0-9a-f]{8}")
_AT_ONCE = 16  # requests of one process
_ONCE = {"max_retries": 0}  # They are repeated here, the same way for all stores, and until a deadline.
_PERMANENT = ("PERMISSION_DENIED", "UNAUTHENTICATED", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION")
TO_APPEAR_S = 30.0  # for what another machine has written: network file systems keep old listings for so long
_SECONDS_BETWEEN_LOOKS = 0.1  # at a folder in which files are to appear


@dataclasses.dataclass(frozen=True)
class StorePatience:
    """How long to wait for a store, in seconds."""

    all: float = 600.0  # for a request with all its repetitions
    each: float = 30.0  # for the first, and a second more for each MiB; twice as long after each that was too short
    first_pause: float = 0.1  # before the first repetition; the pauses double
    longest_pause: float = 8.0


STORE_PATIENCE = StorePatience()


class StoreError(CheckpointError, OSError):
    """An object store cannot be reached, or refuses a request."""


@dataclasses.dataclass(frozen=True)
class StorePath:
    """A name in an object store, with those methods of `pathlib.Path` that checkpoints need."""

    url: str  # such as "gs://bucket/folder/name", without a slash at its end
    patience: StorePatience = dataclasses.field(default=STORE_PATIENCE, compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> StorePath:
        return dataclasses.replace(self, url=f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """The part behind the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> StorePath:
        """The name without its last part; of a bucket itself the bucket."""
        return dataclasses.replace(self, url=self.url.rpartition("/")[0]) if self._key else self

    @property
    def _bucket(self) -> tuple[str, str]:
        scheme, _, rest = self.url.partition("://")
        return scheme, rest.partition("/")[0]

    @property
    def _key(self) -> str:
        return self.url.partition("://")[2].partition("/")[2]

    def exists(self) -> bool:
        """Returns whether there is an object of this name, or one in it."""
        return self.is_file() or self.is_dir()

    def is_dir(self) -> bool:
        """Returns whether there are objects in it."""
        return bool(self.names())

    def is_file(self) -> bool:
        """Returns whether there is an object of this name."""
        return self._get("looked for", slice(0, 1)) is not None

    def iterdir(self) -> Iterator[StorePath]:
        """Yields what is in it."""
        for name in sorted({name.partition("/")[0] for name in self.names()}):
            yield self / name

    def names(self) -> list[str]:
        """Returns the names of all objects in it, however deep, relative to it."""
        import tensorstore

        prefix = f"{self._key}/" if self._key else ""
        end = f"{prefix[:-1]}{chr(ord('/') + 1)}" if prefix else ""
        keys = self._tried("listed", lambda store: store.list(tensorstore.KvStore.KeyRange(prefix, end)))
        # Some stores answer with more than they were asked for, or with pages that overlap; none promises an order.
        return sorted({name[len(prefix) :] for key in keys if (name := key.decode()).startswith(prefix)})

    def read_bytes(self) -> bytes:
        """Returns the contents of the object; raises a `FileNotFoundError` if there is none."""
        found = self._get("read")
        if found is None:
            raise FileNotFoundError(f"There is no object {self}.")
        return found

    def read_text(self, encoding: str = "utf-8") -> str:
        """Returns the contents of the object as a text."""
        return self.read_bytes().decode(encoding)

    def write_bytes(self, data: bytes) -> None:
        """Writes the object. It is all there when this returns, and was never there in part."""
        self._tried("written", lambda store: store.write(self._key, data), len(data))

    def write_text(self, text: str, encoding: str = "utf-8") -> None:
        """Writes a text as the object."""
        self.write_bytes(text.encode(encoding))

    def unlink(self, missing_ok: bool = True) -> None:
        """Deletes the object; does nothing if there is none."""
        self._tried("deleted", lambda store: store.write(self._key, None))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing: a store has no folders."""

    def _get(self, what: str, part: slice | None = None) -> bytes | None:
        found = self._tried(what, lambda store: store.read(self._key, byte_range=part))
        return found.value if found.state == "value" else None

    def _tried(self, what: str, ask: Callable[[tensorstore.KvStore], tensorstore.Future[_T]], nbytes: int = 0) -> _T:
        """Returns the answer of the store, which is asked again and again until the patience ends."""
        begun, pause = time.monotonic(), self.patience.first_pause
        each = self.patience.each + nbytes / 2**20
        while True:
            left = begun + self.patience.all - time.monotonic()
            future = None
            try:
                future = ask(_opened(*self._bucket, *_settings(dict(os.environ))))
                return future.result(timeout=max(0.0, min(left, each)))
            except TimeoutError:
                assert future is not None
                future.cancel()
                problem = f"it did not answer within {each:g} s"
                each *= 2  # A store that has too much to do gets no more to do.
            except Exception as error:  # TensorStore raises many kinds.
                problem = str(error)
                if any(word in problem for word in _PERMANENT):
                    raise StoreError(f"{self} could not be {what}: {problem}") from None
            pause = min(2 * pause, self.patience.longest_pause)
            if time.monotonic() + pause - begun > self.patience.all:
                raise StoreError(f"{self} could not be {what} for {self.patience.all:g} s; the last time: {problem}")
            time.sleep(pause * random.uniform(0.5, 1.0))  # So that processes which failed together do not ask together.


#: A directory of checkpoints, a checkpoint, or a file of one.
Place: TypeAlias = Path | StorePath
Directory: TypeAlias = str | os.PathLike[str] | StorePath


def absolute(directory: Directory) -> Place:
    """Returns the absolute path of a directory, or the place in a store that a URL names."""
    if isinstance(directory, StorePath):
        return directory
    path = os.fspath(directory) if isinstance(directory, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path or "\0" in path:
        raise ArgumentError(f"A directory is a string or a pathlib.Path, got {directory!r:.100}.")
    url = _URL.fullmatch(path)
    if url is None:
        return Path(directory).absolute()
    parts = [part for part in url["rest"].split("/") if part]
    if url["scheme"] not in _STORES or not parts or {".", ".."} & set(parts):
        stores = " or ".join(f"{scheme}://bucket/name" for scheme in _STORES)
        raise ArgumentError(f"A directory is a path on a disk, or {stores}, got {directory!r:.100}.")
    return StorePath(f"{url['scheme']}://{'/'.join(parts)}")


def _settings(environment: Mapping[str, str]) -> tuple[str, str, bool]:
    """Returns what the usual variables say of S3: the address, the region, and whether they have the credentials."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else "")
    return endpoint, region, "AWS_ACCESS_KEY_ID" in environment


@functools.cache
def _opened(scheme: str, bucket: str, endpoint: str, region: str, has_credentials: bool) -> tensorstore.KvStore:
    """Returns TensorStore's client for a bucket. It finds credentials as the stores' own tools do."""
    import tensorstore

    spec: dict[str, object] = {"bucket": bucket}
    if scheme == "gs":
        if address := os.environ.get("STORAGE_EMULATOR_HOST"):  # the name that Google's own libraries know
            os.environ.setdefault("TENSORSTORE_GCS_HTTP_URL", address if "://" in address else f"http://{address}")
        spec |= {"driver": "gcs", "gcs_request_retries": _ONCE}
    else:
        spec |= {"driver": "s3", "s3_request_retries": _ONCE}
        spec |= {"endpoint": endpoint} if endpoint else {}
        spec |= {"aws_region": region} if region else {}
        if has_credentials:  # The chain of all kinds would write to stderr where there are no files of AWS's.
            spec |= {"aws_credentials": {"type": "environment"}}
    return tensorstore.KvStore.open(spec).result()


# Writing one checkpoint.


class Staging(Protocol):
    """A checkpoint while it is written: nobody sees it before `commit`."""

    @property
    def place(self) -> Place:
        """Where its files are meanwhile."""

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, and returns when it lasts."""

    def missing(self, sizes: Mapping[str, int], seconds: float) -> list[str]:
        """Returns the files that other processes have written, of these sizes, and that are not seen in time."""

    def commit(self, marker: bytes) -> None:
        """Makes the checkpoint appear under its name, in the place of one that has it."""

    def discard(self) -> None:
        """Deletes what was written."""


def new_name(path: Place) -> str:
    """Returns a name for `staging`: the process that commits chooses it."""
    name = secrets.token_hex(4)
    return name if isinstance(path, Path) else f"{max(map(_number, _versions(path.names())), default=0) + 1:06d}-{name}"


def staging(path: Place, name: str, marker: str = MARKER) -> Staging:
    """Returns where a checkpoint is written, before it has the name `path`; the same in all processes."""
    return _Folder(path, name, marker) if isinstance(path, Path) else _Version(path, name, marker)


class _Folder:
    def __init__(self, path: Path, name: str, marker: str):
        self._path, self._marker = path, marker
        self.place = path.parent / f".{path.name}.{name}{UNFINISHED}"

    def write(self, name: str, data: bytes) -> None:
        file = self.place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_durably(file, data)

    def missing(self, sizes: Mapping[str, int], seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        while True:
            missing = sorted(wrong_files(self.place, sizes))
            if not missing or time.monotonic() >= deadline:
                return missing
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def commit(self, marker: bytes) -> None:
        self.write(self._marker, marker)
        for folder, _, _ in os.walk(self.place):
            _sync_folder(Path(folder))
        # There is a complete checkpoint at every moment: until the new one has the name, readers find the old one by
        # `place_of`.
        path = self._path
        if path.exists():
            path.rename(path.parent / f".{path.name}.{secrets.token_hex(4)}{REPLACED}")
        self.place.rename(path)
        _sync_folder(path.parent)
        for replaced in _those_aside(path):
            delete(replaced)

    def discard(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


class _Version:
    def __init__(self, path: StorePath, name: str, marker: str):
        self._path, self._marker, self.place = path, marker, path / name

    def write(self, name: str, data: bytes) -> None:
        (self.place / name).write_bytes(data)

    def missing(self, sizes: Mapping[str, int], seconds: float) -> list[str]:
        return sorted(wrong_files(self.place, sizes))

    def commit(self, marker: bytes) -> None:
        self.write(self._marker, marker)
        with contextlib.suppress(StoreError):  # It is complete. Older ones that are left do not count any more.
            names = self._path.names()
            own = _number(self.place.name)
            _delete_objects(self._path, [name for name in names if not _is_of_version(name, own)])

    def discard(self) -> None:
        with contextlib.suppress(
            StoreError
        ):  # Objects that cannot be deleted now are never complete; `clean` finds them.
            _delete_objects(self.place, self.place.names())


def write_durably(path: Path, data: bytes) -> None:
    """Writes a file and returns when it is on disk, and not just on its way there."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Place, data: bytes) -> None:
    """Gives a file new contents at once: whoever reads it finds the old ones or the new ones."""
    if isinstance(path, StorePath):
        path.write_bytes(data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    try:
        write_durably(new, data)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def append(path: Place, data: bytes) -> None:
    """Adds to the end of a file, which one process writes."""
    if isinstance(path, StorePath):  # An object cannot grow.
        before = path.read_bytes() if path.is_file() else b""
        path.write_bytes(before + data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(data)


def _sync_folder(path: Path) -> None:
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


# Finding and deleting.


def place_of(directory: Directory, marker: str = MARKER) -> Place:
    """Returns where the files of a checkpoint are: in a store, or if its writer was killed, not under its own name."""
    path = absolute(directory)
    if isinstance(path, StorePath):
        return _complete(path, path.names(), marker) or path
    if (path / marker).is_file():
        return path
    # A copy of a store has versions, too.
    versions = [f"{each}/{marker}" for each in _versions(_names_in(path)) if (path / each / marker).is_file()]
    if versions:
        return _complete(path, versions, marker) or path
    return next((each for each in _those_aside(path) if (each / marker).is_file()), path)


def complete_in(directory: Place) -> dict[str, Place]:
    """Returns by their names the complete checkpoints in a directory, as `place_of` finds them."""
    if isinstance(directory, StorePath):
        files: dict[str, list[str]] = {}
        for name in directory.names():
            folder, _, file = name.partition("/")
            files.setdefault(folder, []).append(file)
        return {name: directory / name for name, own in files.items() if _complete(directory / name, own, MARKER)}
    names = {name_of_replaced(name) or name for name in _names_in(directory)}
    places = {name: place_of(directory / name) for name in names}
    return {name: place for name, place in places.items() if (place / MARKER).is_file()}


def delete(path: Place) -> None:
    """Deletes a checkpoint. Remains of one are never mistaken for a complete one."""
    if isinstance(path, StorePath):
        _delete_objects(path, path.names())
        return
    doomed = path.parent / f".{path.name}.{secrets.token_hex(4)}{UNFINISHED}"
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def delete_all(directory: Place) -> None:
    """Deletes a directory with all that is in it."""
    if isinstance(directory, StorePath):
        _delete_objects(directory, directory.names())
    else:
        shutil.rmtree(directory, ignore_errors=True)


def clean(directory: Place) -> Iterator[Place]:
    """Deletes what killed processes have left in a directory, and yields what they had been writing or deleting."""
    if isinstance(directory, StorePath):
        names = directory.names()
        for each in sorted({name.partition("/")[0] for name in names}):
            own = [name.partition("/")[2] for name in names if name.startswith(f"{each}/")]
            place = _complete(directory / each, own, MARKER)
            whole = {place.name} if place is not None else set()
            rest = [name for name in own if _versions([name]) - whole]
            if rest:
                yield directory / each
                _delete_objects(directory / each, rest)
        return
    for path in directory.glob(f".*{UNFINISHED}"):
        yield directory / path.name[1:].removesuffix(UNFINISHED).rpartition(".")[0]
        shutil.rmtree(path, ignore_errors=True)
    for path in directory.glob(f".*{REPLACED}"):
        if place_of(directory / str(name_of_replaced(path.name))) != path:  # Its successor is there.
            delete(path)


def name_of_replaced(name: str) -> str | None:
    """Returns the name that a directory had before it was set aside; None for any other directory."""
    return name[1:].removesuffix(REPLACED).rpartition(".")[0] if name[:1] == "." and name.endswith(REPLACED) else None


def names_in(place: Place, folders: Iterable[str]) -> list[str]:
    """Returns the names of the files in some folders of a checkpoint, relative to it."""
    folders = set(folders)
    if isinstance(place, StorePath):
        return [name for name in place.names() if name.rpartition("/")[0] in folders]
    return [f"{folder}/{name}" for folder in sorted(folders) for name in _names_in(place / folder)]


def wrong_files(place: Place, sizes: Mapping[str, int]) -> dict[str, str]:
    """Returns which files of a checkpoint are missing, or on a disk have other sizes; reads none of them."""
    if isinstance(place, StorePath):
        return dict.fromkeys(sizes.keys() - set(place.names()), "is missing")
    found = {name: _wrong_size(place / name, size) for name, size in sizes.items()}
    return {name: problem for name, problem in found.items() if problem}


def _wrong_size(path: Path, size: int) -> str:
    try:
        found = path.stat().st_size
    except OSError:
        return "is missing"
    return "" if found == size else f"has {found} bytes instead of {size}"


def _those_aside(path: Path) -> list[Path]:
    """Returns what had the name `path` and was set aside."""
    found = path.parent.glob(f".{glob.escape(path.name)}.*{REPLACED}")
    return [each for each in found if name_of_replaced(each.name) == path.name]


def _complete(path: _P, names: Iterable[str], marker: str) -> _P | None:
    """Returns the place of a checkpoint that has these files, the highest version; None if it is not complete."""
    names = set(names)
    complete = [each for each in _versions(names) if f"{each}/{marker}" in names]
    if complete:
        return path / max(complete, key=_number)
    return path if marker in names else None  # A copy of one from a disk.


def _versions(names: Iterable[str]) -> set[str]:
    return {folder for name in names if _VERSION.fullmatch(folder := name.partition("/")[0])}


def _number(version: str) -> int:
    return int(version.partition("-")[0])


def _is_of_version(name: str, number: int) -> bool:
    """Returns whether a file belongs to a version, or to a later one, which another process may be writing."""
    versions = _versions([name])
    return bool(versions) and all(_number(version) >= number for version in versions)


def _delete_objects(place: StorePath, names: Iterable[str]) -> None:
    """Deletes objects, first those that make a checkpoint complete."""
    first = [name for name in names if name.rpartition("/")[2] == MARKER]
    with ThreadPoolExecutor(_AT_ONCE, "replicax-store") as pool:
        for group in (first, sorted(set(names) - set(first))):
            list(pool.map(lambda name: (place / name).unlink(), group))


def _names_in(path: Path) -> list[str]:
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
