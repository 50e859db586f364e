"""Reading named arrays from a directory that `writing.py` has written, and checking them on the way.

Reading runs no code from the files: there is no pickle in them. The result is what was written, or an error that names
the damaged file; nothing is returned before everything has been checked.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.array_files import DESCRIPTION, begin_reading, converted, grid_of, name_of, read_by
from replicax.checkpoint.integrity import check_no_others, check_sizes, problems, read_files, read_in_turn
from replicax.checkpoint.json_fields import parsed
from replicax.checkpoint.metadata import STATE, Entry, Metadata, read_metadata
from replicax.checkpoint.places import Directory, Place, place_of
from replicax.errors import CheckpointError

_Wanted = Mapping[str, jax.ShapeDtypeStruct]  # By folder.

_GROUP_BYTES = 1 << 26  # Arrays are read together up to this size: more fetch from the disk, fewer wait for each other.
_AHEAD = 2  # arrays that TensorStore reads while one is made
_MOST_MISSING = 100  # parts of an array that are listed: a forged description may speak of very many


def entries(directory: Directory) -> dict[str, Entry]:
    """Returns the names, shapes and dtypes of the arrays in a checkpoint; reads none of their numbers."""
    return dict(read_metadata(directory).arrays)


def damaged_files(directory: Directory) -> dict[str, str]:
    """Reads all of a checkpoint and returns its damaged files, with what is wrong with each."""
    path = place_of(directory)
    metadata = read_metadata(path)
    return problems(path, metadata.files) | _never_written(path, metadata)


def checked_metadata(directory: Directory) -> Metadata:
    """Returns the metadata of a checkpoint, after a check that all its files are there."""
    metadata = read_metadata(directory)
    check_sizes(place_of(directory), metadata.files)
    return metadata


@activity.phase(activity.CHECKPOINT)
def read_arrays(
    directory: Directory,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    metadata: Metadata | None = None,
    verify: bool = True,
) -> dict[str, jax.Array | np.ndarray]:
    """Returns arrays of a checkpoint as `wanted`, NumPy arrays without a sharding; each device reads its own parts."""
    place = place_of(directory)
    metadata = metadata or checked_metadata(place)
    folders = _folders(place, metadata, wanted)
    names = {metadata.arrays[name].folder: name for name in wanted}
    read: dict[str, jax.Array | np.ndarray] = {}
    for group, files in _read_groups(place, metadata, folders, verify):
        own: dict[str, dict[str, bytes]] = {}
        for name in list(files):  # Nothing but `own` holds them then, and that until they are read.
            folder, _, file = name.partition("/")
            own.setdefault(folder, {})[file] = files.pop(name)
        read.update(_arrays(place, names, own, group))
    return {
        name: read[folder] if (folder := metadata.arrays[name].folder) else _empty(spec)
        for name, spec in wanted.items()
    }


@activity.phase(activity.CHECKPOINT)
def check_arrays(
    directory: Directory, wanted: Mapping[str, jax.ShapeDtypeStruct], metadata: Metadata, verify: bool = True
) -> None:
    """Checks that `read_arrays` can read arrays of a checkpoint."""
    place = place_of(directory)
    folders = _folders(place, metadata, wanted)
    for _ in _read_groups(place, metadata, folders, verify) if verify else ():
        pass


def _folders(place: Place, metadata: Metadata, wanted: Mapping[str, jax.ShapeDtypeStruct]) -> _Wanted:
    check_wanted(place, metadata.arrays, wanted)
    return {folder: spec for name, spec in wanted.items() if (folder := metadata.arrays[name].folder)}


@activity.phase(activity.CHECKPOINT)
def read_state(directory: Directory, metadata: Metadata | None = None, verify: bool = True) -> list[dict[str, object]]:
    """Returns the state that each process wrote, in their order."""
    place = place_of(directory)
    metadata = metadata or checked_metadata(place)
    names = [STATE.format(i) for i in range(metadata.processes)]
    files = read_files(place, {name: metadata.files[name] for name in names}, verify)
    try:
        return [_state(name, files[name]) for name in names]
    except ValueError as error:
        raise CheckpointError(f"The checkpoint {place} is damaged: its state cannot be read: {error}") from error


def _state(name: str, data: bytes) -> dict[str, object]:
    state = parsed(data)
    if not isinstance(state, dict):
        raise ValueError(f"{name} holds {state!r:.100}, not parts by name")
    return state


def _read_groups(
    place: Place, metadata: Metadata, wanted: _Wanted, verify: bool
) -> Iterator[tuple[_Wanted, dict[str, bytes]]]:
    """Yields the folders to read in groups, each with the files of it that this process reads."""
    folders = {entry.folder for entry in metadata.arrays.values() if entry.folder}
    described = {f"{folder}/{DESCRIPTION}" for folder in wanted}
    # The small files first: they say how to read the others.
    small = {
        name: f
        for name, f in metadata.files.items()
        if name in described or (verify and name.partition("/")[0] not in folders)
    }
    descriptions = read_files(place, small, verify)
    if verify:
        check_no_others(place, wanted, metadata.files)
    by_folder: dict[str, dict[str, tuple[int, str]]] = {}
    for name, file in metadata.files.items():
        by_folder.setdefault(name.partition("/")[0], {})[name] = file
    groups: list[tuple[dict[str, jax.ShapeDtypeStruct], dict[str, tuple[int, str]]]] = []
    size = _GROUP_BYTES
    for folder, spec in wanted.items():
        if size >= _GROUP_BYTES:
            groups.append(({}, {}))
            size = 0
        chunks = read_by(spec, _grid(place, folder, descriptions))
        parts = {name: f for name, f in by_folder.get(folder, {}).items() if name.partition("/")[2] in chunks}
        groups[-1][0][folder] = spec
        groups[-1][1].update(parts)
        size += sum(length for length, _ in parts.values())
    read = read_in_turn(place, [files for _, files in groups], verify)
    for (group, _), files in zip(groups, read, strict=True):
        files.update({name: descriptions[name] for name in described if name.partition("/")[0] in group})
        yield group, files


def _grid(place: Place, folder: str, files: Mapping[str, bytes]) -> list[int]:
    """Returns the shape of an array's parts."""
    name = f"{folder}/{DESCRIPTION}"
    try:
        return grid_of(files[name])
    except KeyError:
        raise CheckpointError(f"The checkpoint {place} is damaged: {name} was never written.") from None
    except ValueError as error:
        raise CheckpointError(f"{place / name} cannot be read: {error}") from error


def _arrays(
    place: Place, names: Mapping[str, str], files: dict[str, dict[str, bytes]], wanted: _Wanted
) -> Iterator[tuple[str, jax.Array | np.ndarray]]:
    """Yields arrays by their folders; while one is made, the next are read."""
    begun = collections.deque[tuple[str, Callable[[], jax.Array | np.ndarray]]]()

    def first() -> tuple[str, jax.Array | np.ndarray]:
        folder, finish = begun.popleft()
        with _reading(place, names[folder]):
            return folder, finish()

    for folder, spec in wanted.items():
        with _reading(place, names[folder]):
            begun.append((folder, begin_reading(files.pop(folder), spec)))
        if len(begun) > _AHEAD:
            yield first()
    while begun:
        yield first()


def converted_to(dtype: np.dtype, values: np.ndarray, place: Place, name: str) -> np.ndarray:
    """Returns values that were read, under `name`, in another dtype, which must be able to hold them."""
    with _reading(place, name):
        return converted(values, dtype)


@contextlib.contextmanager
def _reading(place: Place, name: str) -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise CheckpointError(
            f"{name!r} in the checkpoint {place} has a value that is not restored: {error}. Restore it into an array "
            "or variable of the dtype that it was saved with, and convert it then."
        ) from None
    except Exception as error:  # TensorStore raises many kinds, and none names the checkpoint.
        raise CheckpointError(f"The checkpoint {place} could not be read: {type(error).__name__}: {error}") from error


def _never_written(place: Place, metadata: Metadata) -> dict[str, str]:
    """Returns the parts of arrays that the metadata does not list, with what is wrong with each."""
    found: dict[str, str] = {}
    for entry in metadata.arrays.values():
        description = f"{entry.folder}/{DESCRIPTION}"
        if entry.folder and description not in metadata.files:
            found[description] = "was never written"
        elif entry.folder:
            missing = (name for name in _expected(place, entry) if name not in metadata.files)
            found |= dict.fromkeys(itertools.islice(missing, _MOST_MISSING), "was never written")
    return found


def _expected(place: Place, entry: Entry) -> Iterator[str]:
    """Yields the names of the files of an array's parts; none if its description, a damaged file, cannot be read."""
    try:
        grid = grid_of((place / entry.folder / DESCRIPTION).read_bytes())
    except (OSError, ValueError):
        return
    counts = [-(-length // n) for length, n in zip(entry.shape, grid, strict=False)]
    for at in _places(counts):
        yield f"{entry.folder}/{name_of(at)}"


def _places(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the places in a grid, and holds none of them, however many there are."""
    if not counts:
        yield ()
        return
    for i in range(counts[0]):
        for rest in _places(counts[1:]):
            yield (i, *rest)


def _empty(wanted: jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
    if wanted.sharding is None:
        return np.zeros(wanted.shape, wanted.dtype)
    return jax.jit(lambda: jax.numpy.zeros(wanted.shape, wanted.dtype), out_shardings=wanted.sharding)()


def check_wanted(path: Place, found: Mapping[str, Entry], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Checks that a checkpoint has arrays of these names and shapes, and of dtypes that can be converted to these."""
    missing = [name for name in wanted if name not in found]
    if missing:
        raise CheckpointError(f"The checkpoint {path} has no {missing}. It has: {', '.join(found)}.")
    for name, expected in wanted.items():
        stored = found[name]
        if stored.shape != tuple(expected.shape):
            raise CheckpointError(
                f"{name!r} has shape {stored.shape} in the checkpoint {path}, expected {tuple(expected.shape)}."
            )
        if rank_of_kind(stored.dtype) > rank_of_kind(expected.dtype):
            raise CheckpointError(
                f"{name!r} is {stored.dtype} in the checkpoint {path}, expected {expected.dtype}, which cannot hold it."
            )


def rank_of_kind(dtype: np.dtype) -> int:
    """Returns the rank of a kind of numbers: each kind can hold those of lower ranks, as JAX promotes them."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 0)
