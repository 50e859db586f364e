"""Reading named arrays from a directory that `writing.py` has written, and checking them on the way.

Reading runs no code from the files: there is no pickle in them. The result is what was written, or an error that names
the damaged file; nothing is returned before everything has been checked.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import replicax.runtime.activity as activity
from replicax.checkpoint.integrity import Files, check, check_no_others, check_sizes, checked_in_turn, problems
from replicax.checkpoint.json_fields import count_of, field_of, parsed
from replicax.checkpoint.metadata import STATE, Entry, Metadata, place_of, read_metadata
from replicax.checkpoint.writing import Directory
from replicax.compat.orbax import restore_files
from replicax.errors import CheckpointError

_Wanted = Mapping[str, jax.ShapeDtypeStruct]  # By folder.

_ZARR = ".zarray"  # An array's shape, dtype, and the shape of its parts.
_GROUP_BYTES = 1 << 28  # Arrays are read together up to this size: more fetch from the disk, fewer wait for each other.
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
    path = place_of(directory)
    metadata = metadata or checked_metadata(path)
    found = metadata.arrays
    check_wanted(path, found, wanted)
    folders = {found[name].folder: spec for name, spec in wanted.items() if found[name].folder}
    read: dict[str, jax.Array | np.ndarray] = {}
    for group in _checked_groups(path, metadata, folders) if verify else [folders]:
        read |= _restored(path, metadata, group)
    return {name: read[found[name].folder] if found[name].folder else _empty(spec) for name, spec in wanted.items()}


@activity.phase(activity.CHECKPOINT)
def check_arrays(
    directory: Directory, wanted: Mapping[str, jax.ShapeDtypeStruct], metadata: Metadata, verify: bool = True
) -> None:
    """Checks that `read_arrays` can read arrays of a checkpoint."""
    path = place_of(directory)
    found = metadata.arrays
    check_wanted(path, found, wanted)
    folders = {found[name].folder: spec for name, spec in wanted.items() if found[name].folder}
    for _ in _checked_groups(path, metadata, folders) if verify else ():
        pass


@activity.phase(activity.CHECKPOINT)
def read_state(directory: Directory, metadata: Metadata | None = None, verify: bool = True) -> list[dict[str, object]]:
    """Returns the state that each process wrote, in their order."""
    path = place_of(directory)
    metadata = metadata or checked_metadata(path)
    names = [STATE.format(i) for i in range(metadata.processes)]
    if verify:
        check(path, {name: metadata.files[name] for name in names})
    try:
        return [_state(path / name) for name in names]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The checkpoint {path} is damaged: its state cannot be read: {error}") from error


def _state(path: Path) -> dict[str, object]:
    state = parsed(path.read_bytes())
    if not isinstance(state, dict):
        raise ValueError(f"{path.name} holds {state!r:.100}, not parts by name")
    return state


def _checked_groups(path: Path, metadata: Metadata, wanted: _Wanted) -> Iterator[_Wanted]:
    """Yields the folders to read in groups, each when all that is read of it has been checked."""
    folders = {entry.folder for entry in metadata.arrays.values() if entry.folder}
    described = {f"{folder}/{_ZARR}" for folder in wanted}
    # The small files first: they say how to read the others.
    check(
        path,
        {name: f for name, f in metadata.files.items() if name in described or name.partition("/")[0] not in folders},
    )
    check_no_others(path, wanted, metadata.files)
    groups: list[tuple[dict[str, jax.ShapeDtypeStruct], dict[str, tuple[int, str]]]] = []
    size = _GROUP_BYTES
    for folder, spec in wanted.items():
        if size >= _GROUP_BYTES:
            groups.append(({}, {}))
            size = 0
        parts = _parts_read(path, folder, spec, metadata.files)
        groups[-1][0][folder] = spec
        groups[-1][1].update(parts)
        size += sum(length for length, _ in parts.values())
    for (group, _), _ in zip(groups, checked_in_turn(path, [files for _, files in groups]), strict=True):
        yield group


def _parts_read(path: Path, folder: str, spec: jax.ShapeDtypeStruct, files: Files) -> Files:
    """Returns the files of an array that the devices of this process read."""
    own = {name: file for name, file in files.items() if name.startswith(f"{folder}/") and not name.endswith(_ZARR)}
    if spec.sharding is None or spec.sharding.is_fully_addressable:
        return own
    chunks = _chunks(path / folder / _ZARR)
    read: set[str] = set()
    for index in spec.sharding.addressable_devices_indices_map(tuple(spec.shape)).values():
        bounds = [part.indices(length) for part, length in zip(index or (), spec.shape, strict=True)]
        grid = [range(start // n, -(-stop // n)) for (start, stop, _), n in zip(bounds, chunks, strict=True)]
        read |= {f"{folder}/{'.'.join(map(str, place)) or '0'}" for place in itertools.product(*grid)}
    return {name: file for name, file in own.items() if name in read}


def _never_written(path: Path, metadata: Metadata) -> dict[str, str]:
    """Returns the parts of arrays that the metadata does not list, with what is wrong with each."""
    found: dict[str, str] = {}
    for entry in metadata.arrays.values():
        description = f"{entry.folder}/{_ZARR}"
        if entry.folder and description not in metadata.files:
            found[description] = "was never written"
        elif entry.folder and (path / description).is_file():
            missing = (name for name in _expected(path, entry) if name not in metadata.files)
            found |= dict.fromkeys(itertools.islice(missing, _MOST_MISSING), "was never written")
    return found


def _expected(path: Path, entry: Entry) -> Iterator[str]:
    """Yields the names of the files of an array's parts; none if its description, a damaged file, cannot be read."""
    try:
        chunks = _chunks(path / entry.folder / _ZARR)
    except CheckpointError:
        return
    counts = [-(-length // n) for length, n in zip(entry.shape, chunks, strict=False)]
    for place in _places(counts):
        yield f"{entry.folder}/{'.'.join(map(str, place)) or '0'}"


def _places(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yields the places in a grid, and holds none of them, however many there are."""
    if not counts:
        yield ()
        return
    for i in range(counts[0]):
        for rest in _places(counts[1:]):
            yield (i, *rest)


def _chunks(description: Path) -> list[int]:
    """Returns the shape of an array's parts."""
    try:
        return [count_of({"chunk": n}, "chunk", 1) for n in field_of(parsed(description.read_bytes()), "chunks", list)]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{description} cannot be read: {error}") from error


def _restored(path: Path, metadata: Metadata, folders: _Wanted) -> dict[str, jax.Array | np.ndarray]:
    if not folders:
        return {}
    try:
        return restore_files(path, [entry.folder for entry in metadata.arrays.values() if entry.folder], folders)
    except Exception as error:  # Orbax and TensorStore raise many kinds, and none names the checkpoint.
        raise CheckpointError(f"The checkpoint {path} could not be read: {type(error).__name__}: {error}") from error


def _empty(wanted: jax.ShapeDtypeStruct) -> jax.Array | np.ndarray:
    if wanted.sharding is None:
        return np.zeros(wanted.shape, wanted.dtype)
    return jax.jit(lambda: jax.numpy.zeros(wanted.shape, wanted.dtype), out_shardings=wanted.sharding)()


def check_wanted(path: Path, found: Mapping[str, Entry], wanted: Mapping[str, jax.ShapeDtypeStruct]) -> None:
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
        if _rank(stored.dtype) > _rank(expected.dtype):
            raise CheckpointError(
                f"{name!r} is {stored.dtype} in the checkpoint {path}, expected {expected.dtype}, which cannot hold it."
            )


def _rank(dtype: np.dtype) -> int:
    """Returns the rank of a kind of numbers: each kind can hold those of lower ranks, as JAX promotes them."""
    kinds = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)
    return next((i for i, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), 0)
