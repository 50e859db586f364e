"""Units: the parts of a dataset that workers read by themselves, such as files or shards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from replicax.data.batch_placement import owned_copy
from replicax.data.batch_split import check_row_shapes
from replicax.data.batches import check_signature, count_rows, signature
from replicax.data.position import Position
from replicax.data.sources import HostBatches, check_batch_size, host_batches, is_nest
from replicax.errors import ArgumentError, BatchError


class FileSource:
    """A dataset in files, for `strategy.distribute_dataset`: each worker reads files of its own.

    Of W workers, worker w reads the files w, w + W, ...; there may be fewer files than workers. A step takes the next
    `batch_size / W` rows of each worker. A single process reads all files in their order, `batch_size` rows at a time.

    Args:
        files: Names of the files, in the same order on every worker.
        read_fn: Takes one of them and returns its rows: a nest of arrays, or an iterable of such nests of any sizes
            (so that a file need not fit in memory).
        batch_size: Rows in a global batch.

    Raises:
        ArgumentError: There is no file, `read_fn` cannot be called, or `batch_size` is no positive int.

    Example:
        >>> rows_of = {"a": [1, 2, 3], "b": [4, 5]}
        >>> source = FileSource(["a", "b"], lambda file: np.array(rows_of[file]), batch_size=4)
        >>> [batch.tolist() for batch in source]
        [[1, 2, 3, 4], [5]]
    """

    def __init__(self, files: Sequence[Any], read_fn: Callable[[Any], Any], *, batch_size: int):
        if isinstance(files, (str, bytes)) or not len(files):
            raise ArgumentError(f"`files` is a list of at least one file, got {files!r}.")
        if not callable(read_fn):
            raise ArgumentError(f"`read_fn` is a function of a file that returns its rows, got {read_fn!r:.80}.")
        self.files = tuple(files)
        self.batch_size = check_batch_size(batch_size)
        self._read_fn = read_fn

    def __iter__(self) -> Iterator[Any]:
        """Yields the global batches of all files."""
        reader = UnitReader(FileUnits(self), range(len(self.files)), Position())
        return (piece.batch for piece in rebatched(reader, self.batch_size))

    def rows_of(self, file: Any) -> HostBatches:
        """Returns the rows of a file, in parts of any sizes."""
        return host_batches(lambda: self._parts(file))

    def _parts(self, file: Any) -> Iterator[Any]:
        made = self._read_fn(file)
        parts: Iterable[Any] = [made] if is_nest(made) else host_parts(made)
        for part in parts:
            if any(np.shape(leaf)[:1] != (0,) for leaf in jax.tree.leaves(part)):  # A file may have no rows.
                yield part


def host_parts(made: Any) -> Generator[Any]:
    """Yields what `made`, a source of batches, yields, and closes it."""
    with host_batches(lambda: made).open_source() as parts:
        yield from parts


class Units(Protocol):
    """The units of a dataset.

    Attributes:
        count: How many there are.
        fixed: Whether unit w is only to be had on worker w.
    """

    count: int
    fixed: bool

    def open(self, unit: int) -> Generator[Any]:
        """Yields the checked batches of a unit, of any sizes."""


class FileUnits:
    """Files; any worker can read any of them."""

    fixed = False

    def __init__(self, source: FileSource):
        self.count = len(source.files)
        self._source = source

    def open(self, unit: int) -> Generator[Any]:
        return iter(self._source.rows_of(self._source.files[unit]))


class OwnUnits:
    """What each worker has made for itself."""

    fixed = True

    def __init__(self, batches: HostBatches, workers: int):
        self.count = workers
        self._batches = batches

    def open(self, unit: int) -> Generator[Any]:
        del unit  # This worker's; the others' are theirs.
        return iter(self._batches)


class HintUnits:
    """The shards of a dataset that can be sharded; any worker can make any of them."""

    fixed = False

    def __init__(self, source: Any, count: int):
        self.count = count
        self._source = source

    def open(self, unit: int) -> Generator[Any]:
        shard = getattr(self._source, "shard", None)
        if self.count == 1:
            made = self._source
        elif callable(shard):
            made = shard(self.count, unit)
        else:
            made = self._source[unit :: self.count]
        return iter(host_batches(lambda: made))


def takes_a_hint(source: Any) -> bool:
    """Returns whether `HintUnits` can shard `source`: by its own method, or by a slice as Grain's `MapDataset`."""
    return callable(getattr(source, "shard", None)) or type(source).__module__.partition(".")[0] == "grain"


class UnitReader(Iterable[tuple[int, Any]]):
    """Reads units one after the other: yields each batch with the number of its unit.

    Args:
        units: The units.
        mine: Which of them to read.
        position: What has been read of them already, and is left out.

    Attributes:
        first_rows: Number of rows of the first batch that the source gave; 0 as long as it has given none.
    """

    def __init__(self, units: Units, mine: Iterable[int], position: Position):
        self.first_rows = 0
        self._units, self._mine, self._position = units, mine, position

    def __iter__(self) -> Generator[tuple[int, Any]]:
        expected, index = None, 0
        for unit in self._mine:
            with contextlib.closing(self._units.open(unit)) as batches:
                for batch in behind(self._noticed(batches), self._position.skipped(unit)):
                    found = signature(batch)
                    expected = expected or found
                    check_signature(index, found, expected)
                    index += 1
                    yield unit, batch

    def _noticed(self, batches: Iterable[Any]) -> Generator[Any]:
        for batch in batches:
            self.first_rows = self.first_rows or count_rows(batch)
            yield batch


def units_of_worker(units: Units, position: Position, worker: int, workers: int) -> list[int]:
    """Returns the units that a worker reads, of those that are not used up.

    Raises:
        ArgumentError: The position is one in other units.
    """
    if position.rows and position.units != units.count:
        hint = (
            "Each worker's own data can only go on with the same number of workers; use an rx.data.FileSource, or data "
            "that all workers read alike."
            if units.fixed
            else "Give the same files, in the same order, and the same `auto_shard_policy`."
        )
        raise ArgumentError(
            f"The state is of a dataset in {position.units or 1} part(s), but this one has {units.count}. {hint}"
        )
    if units.fixed:
        return [] if worker in position.done else [worker]
    return [unit for unit in range(units.count) if unit not in position.done][worker::workers]


def behind(batches: Iterable[Any], rows: int) -> Generator[Any]:
    """Yields what comes behind the first `rows` rows.

    Raises:
        BatchError: There are not so many.
    """
    left = rows
    for batch in batches:
        found = count_rows(batch)
        if left >= found:
            left -= found
            continue
        yield jax.tree.map(lambda leaf: leaf[left:], batch) if left else batch  # noqa: B023 - used at once
        left = 0
    if left:
        raise BatchError(f"The pass should go on behind row {rows}, but there are only {rows - left} rows.")


class Piece(NamedTuple):
    """What one worker has for a step.

    Attributes:
        batch: Its rows, in memory of their own.
        taken: How many of them are from which unit.
        full: Whether it is one batch for each of the worker's replicas, all of the same size.
    """

    batch: Any
    taken: list[tuple[int, int]]
    full: bool = False


def rebatched(batches: Iterable[tuple[int, Any]], size: int) -> Generator[Piece]:
    """Yields pieces of `size` rows, put together from batches of any sizes; the last may have fewer."""
    parts: list[Any] = []
    taken: list[tuple[int, int]] = []
    missing = size
    for unit, batch in batches:
        start, rows = 0, count_rows(batch)
        while start < rows:
            stop = min(start + missing, rows)
            parts.append(jax.tree.map(lambda leaf: owned_copy(leaf[start:stop]), batch))  # noqa: B023 - used at once
            taken.append((unit, stop - start))
            missing -= stop - start
            start = stop
            if not missing:
                yield Piece(joined(parts), taken)
                parts, taken, missing = [], [], size
    if parts:
        yield Piece(joined(parts), taken)


def grouped(batches: Iterable[tuple[int, Any]], count: int) -> Generator[Piece]:
    """Yields pieces of `count` consecutive batches each; the last may have fewer."""
    parts: list[Any] = []
    taken: list[tuple[int, int]] = []
    for unit, batch in batches:
        parts.append(jax.tree.map(owned_copy, batch))
        taken.append((unit, count_rows(batch)))
        if len(parts) == count:
            yield Piece(joined(parts), taken, full=len({rows for _, rows in taken}) == 1)
            parts, taken = [], []
    if parts:
        yield Piece(joined(parts), taken)


def joined(parts: Sequence[Any]) -> Any:
    """Returns the rows of several batches as one.

    Raises:
        BatchError: They differ in more than their number of rows.
    """
    if len(parts) == 1:
        return parts[0]
    check_row_shapes(parts)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
