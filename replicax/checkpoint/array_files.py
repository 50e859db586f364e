"""An array as files: zarr's format 2 with chunks compressed by zstd, as Orbax writes it, made and read by TensorStore.

The files are made in memory, a chunk at a time: so they go to any place, and their checksums cost no second reading.
A chunk is what one device holds, or a part of it: devices that hold the same values share the writing.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint.json_fields import count_of, field_of, parsed

DESCRIPTION = ".zarray"  # an array's shape, dtype, and the shape of its chunks
TREE = "_METADATA"  # the file by which Orbax finds the arrays
_KEY_OF_DICT = 2
_SHARED_BYTES = 1 << 20  # Chunks below it are written by one device alone.
_MOST_PIECES = 64


class Chunk(NamedTuple):
    """A part of an array that is written as one file."""

    grid: tuple[int, ...]  # the shape of the array's chunks
    start: tuple[int, ...]  # where it begins in the array
    shape: tuple[int, ...]  # of the array
    held: jax.Array | np.ndarray  # by a device; the chunk is a part of it
    part: tuple[slice, ...]

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yields its file and the array's description, by their names in the array's folder."""
        import tensorstore

        context = tensorstore.Context()  # with a memory of its own
        values = np.asarray(self.held)[self.part]  # A slice of JAX's would be a computation.
        compressed = {"compressor": {"id": "zstd", "level": 1}, "shape": list(self.shape), "chunks": list(self.grid)}
        memory = tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "memory"},
            "metadata": compressed,
            "dtype": values.dtype.name,
            "create": True,
            "store_data_equal_to_fill_value": True,  # Zeros leave a file, too.
        }
        array = tensorstore.open(spec, context=context).result()
        region = tuple(slice(begin, begin + n) for begin, n in zip(self.start, values.shape, strict=True))
        array[region].write(values, can_reference_source_data_indefinitely=True).result()
        for key in memory.list().result():
            yield key.decode(), memory.read(key).result().value


def chunks_of(array: jax.Array | np.ndarray, is_chief: bool, largest: int) -> Iterator[Chunk]:
    """Yields the chunks of an array that this process writes; those of NumPy's arrays the chief writes."""
    shape, itemsize = tuple(np.shape(array)), np.dtype(array.dtype).itemsize
    if not isinstance(array, jax.Array):
        grid = _grid(shape, shape, itemsize, 1, largest)
        yield from _split(array, (0,) * len(shape), grid, shape) if is_chief else ()
        return
    shard = array.sharding.shard_shape(shape)
    copies = len(array.sharding.device_set) * math.prod(shard) // math.prod(shape)
    grid = _grid(shard, shape, itemsize, copies, largest)
    count = math.prod(-(-length // n) for length, n in zip(shard, grid, strict=True))
    for each in array.addressable_shards:
        start = tuple(part.indices(length)[0] for part, length in zip(each.index, shape, strict=True))
        for i, chunk in enumerate(_split(each.data, start, grid, shape)):
            if i * copies // count == each.replica_id:
                yield chunk


def _split(
    held: jax.Array | np.ndarray, start: Sequence[int], grid: tuple[int, ...], shape: tuple[int, ...]
) -> Iterator[Chunk]:
    steps = [range(0, length, n) for length, n in zip(held.shape, grid, strict=True)]
    for offset in itertools.product(*steps):
        part = tuple(slice(begin, begin + n) for begin, n in zip(offset, grid, strict=True))
        yield Chunk(grid, tuple(a + b for a, b in zip(start, offset, strict=True)), shape, held, part)


def _grid(shard: tuple[int, ...], shape: tuple[int, ...], itemsize: int, copies: int, largest: int) -> tuple[int, ...]:
    """Returns the shape of chunks: a shard, or a part for each of its copies, none of more bytes than `largest`."""
    grid = list(shard)
    if copies > 1 and math.prod(shard) * itemsize >= _SHARED_BYTES:
        axis = next((i for i, length in enumerate(grid) if length % copies == 0), None)
        if axis is not None:
            grid[axis] //= copies
    while math.prod(grid) * itemsize > largest:
        smaller = {i: _part_of(n, whole=shard[i] == shape[i]) for i, n in enumerate(grid)}
        axis = max((i for i, n in smaller.items() if n * _MOST_PIECES >= grid[i] > n), key=grid.__getitem__, default=-1)
        if axis < 0:
            break
        grid[axis] = smaller[axis]
    return tuple(grid)


def _part_of(length: int, whole: bool) -> int:
    """Returns a smaller length; of an axis that is sharded a divisor, so that no chunk reaches into the next shard."""
    if whole:
        return -(-length // 2)
    return next((length // n for n in range(2, _MOST_PIECES + 1) if length % n == 0), length)


def tree_of(folders: Sequence[str]) -> bytes:
    """Returns the contents of the file by which Orbax finds the arrays, which are in these folders."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        f"('{folder}',)": {"key_metadata": [{"key": folder, "key_type": _KEY_OF_DICT}], "value_metadata": value}
        for folder in folders
    }
    kinds = {"use_ocdbt": False, "use_zarr3": False, "store_array_data_equal_to_fill_value": True}
    return json.dumps({"tree_metadata": tree, **kinds, "custom_metadata": None}).encode()


def grid_of(description: bytes) -> list[int]:
    """Returns the shape of an array's chunks; raises a `ValueError` if its description is damaged."""
    return [count_of({"chunk": n}, "chunk", 1) for n in field_of(parsed(description), "chunks", list)]


def read_by(spec: jax.ShapeDtypeStruct, grid: Sequence[int]) -> set[str]:
    """Returns the names of the chunks that the devices of this process read."""
    shape = tuple(spec.shape)
    indices = [()] if spec.sharding is None else spec.sharding.addressable_devices_indices_map(shape).values()
    read: set[str] = set()
    for index in indices:
        bounds = [
            part.indices(length) for part, length in zip(index or (slice(None),) * len(shape), shape, strict=True)
        ]
        places = [range(start // n, -(-stop // n)) for (start, stop, _), n in zip(bounds, grid, strict=True)]
        read |= {name_of(place) for place in itertools.product(*places)}
    return read


def name_of(place: Sequence[int]) -> str:
    """Returns the name of the chunk at a place in the grid."""
    return ".".join(map(str, place)) or "0"


def begin_reading(files: dict[str, bytes], spec: jax.ShapeDtypeStruct) -> Callable[[], jax.Array | np.ndarray]:
    """Begins to read an array from its files, in TensorStore's threads. Returns what waits for it, and returns it.

    The dict is empty afterwards: TensorStore has the files, until they are read.

    It is an array as `spec` wants it, one of NumPy's without a sharding. Both calls raise TensorStore's errors, and the
    second an `OverflowError` if the dtype of `spec` cannot hold a value.
    """
    import tensorstore

    context = tensorstore.Context()
    memory = tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
    while files:
        memory.write(*files.popitem()).result()
    opened = {"driver": "zarr", "kvstore": {"driver": "memory"}, "open": True, "fill_missing_data_reads": False}
    array = tensorstore.open(opened, context=context).result()
    shape, sharding = tuple(spec.shape), spec.sharding
    indices = [()] if sharding is None else sharding.addressable_devices_indices_map(shape).values()
    begun = {}
    for index in indices:
        if repr(index) not in begun:  # Devices may hold the same part.
            begun[repr(index)] = (array[index] if index else array).read()

    @functools.cache
    def part(index: str) -> np.ndarray:
        return converted(np.asarray(begun[index].result()), np.dtype(spec.dtype))

    if sharding is None:
        return lambda: part(repr(()))
    return lambda: jax.make_array_from_callback(shape, sharding, lambda index: part(repr(index)))


def converted(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Returns values in another dtype; an `OverflowError` says which of them it cannot hold."""
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        new = values.astype(dtype)
    if jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(values.dtype, jnp.integer):
        here, there = jnp.iinfo(dtype), jnp.iinfo(values.dtype)
        if here.min <= there.min and there.max <= here.max:
            return new
        lost = (values < here.min) | (values > here.max)
    elif jnp.issubdtype(dtype, jnp.inexact) and jnp.issubdtype(values.dtype, jnp.integer):
        digits = jnp.finfo(dtype).nmant + 1
        if jnp.iinfo(values.dtype).bits <= digits:
            return new
        # A float has so many digits from the first that is not 0 to the last; a comparison would round large numbers.
        size = values.astype(np.uint64)
        size = np.where(values < 0, -size, size)
        lost = (size // np.maximum(size & -size, 1) >= 2**digits) | ~np.isfinite(new)
    elif jnp.issubdtype(dtype, jnp.inexact) and not np.isfinite(new).all():
        lost = np.isfinite(values) & ~np.isfinite(new)
    else:
        return new
    if lost.any():
        raise OverflowError(f"{values[lost].flat[0]} does not fit into {dtype}")
    return new
