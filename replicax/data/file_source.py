"""Datasets in files, which workers divide among themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

import jax
import numpy as np

from replicax.checks import explained
from replicax.data.position import Position
from replicax.data.rebatching import rebatched
from replicax.data.shards import ShardReader
from replicax.data.sources import HostBatches, check_batch_size, host_batches, is_array_pytree
from replicax.errors import ArgumentError
from replicax.typing import PyTree

_File = TypeVar("_File")


@explained
class FileSource(Generic[_File]):
    """A dataset in files, for `strategy.distribute_dataset`: each worker reads files of its own.

    Of W workers, worker w reads the files w, w + W, ...; there may be fewer files than workers. A step takes the next
    `batch_size / W` rows of each worker. A single process reads all files in their order, `batch_size` rows at a time;
    in elastic training every worker does, so that no row is lost with a worker.

    Args:
        files: Names of the files, in the same order on every worker.
        read_fn: Takes one of them and returns its rows: a pytree of arrays, or an iterable of such pytrees of any sizes
            (so that a file need not fit in memory).
        batch_size: Rows in a global batch.

    Raises:
        ArgumentError: There is no file, `read_fn` cannot be called, or `batch_size` is not a positive int.

    Example:
        >>> rows_of = {"a": [1, 2, 3], "b": [4, 5]}
        >>> source = FileSource(["a", "b"], lambda file: np.array(rows_of[file]), batch_size=4)
        >>> [batch.tolist() for batch in source]
        [[1, 2, 3, 4], [5]]
    """

    def __init__(self, files: Sequence[_File], read_fn: Callable[[_File], PyTree], *, batch_size: int):
        if isinstance(files, (str, bytes)) or not len(files):
            raise ArgumentError(f"`files` is a list of at least one file, got {files!r}.")
        if not callable(read_fn):
            raise ArgumentError(f"`read_fn` is a function of a file that returns its rows, got {read_fn!r:.80}.")
        self.files = tuple(files)
        self.batch_size = check_batch_size(batch_size)
        self._read_fn = read_fn

    def __iter__(self) -> Iterator[PyTree]:
        """Yields the global batches of all files."""
        reader = ShardReader(FileShards(self), range(len(self.files)), Position())
        return (each.batch for each in rebatched(reader, self.batch_size))

    def part(self, index: int, count: int) -> FileSource[_File]:
        """Returns the source of every `count`-th file, from number `index` on, with batches of the same size."""
        return FileSource(self.files[index::count], self._read_fn, batch_size=self.batch_size)

    def rows_of(self, file: _File) -> HostBatches:
        """Returns the rows of a file, in parts of any sizes."""
        return host_batches(lambda: self._parts(file))

    def _parts(self, file: _File) -> Iterator[PyTree]:
        made = self._read_fn(file)
        parts: Iterable[PyTree] = [made] if is_array_pytree(made) else host_parts(made)
        for part in parts:
            if any(np.shape(leaf)[:1] != (0,) for leaf in jax.tree.leaves(part)):  # A file may have no rows.
                yield part


class FileShards(Generic[_File]):
    """One shard per file; any worker can read any of them."""

    fixed = False

    def __init__(self, source: FileSource[_File]):
        self.count = len(source.files)
        self._source = source

    def open(self, shard: int) -> Generator[PyTree]:
        return iter(self._source.rows_of(self._source.files[shard]))


def host_parts(made: PyTree) -> Generator[PyTree]:
    """Yields what `made`, a source of batches, yields, and closes it."""
    with host_batches(lambda: made).open_source() as parts:
        yield from parts
