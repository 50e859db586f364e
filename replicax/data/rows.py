"""Rows of any source, on their way to batches: mapped, shuffled, batched, in threads beside the step."""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from replicax.checks import checked_int
from replicax.data.batches import count_rows, host_batch
from replicax.data.input_times import InputTimes
from replicax.data.position import Position
from replicax.data.rebatching import WorkerBatch
from replicax.data.row_groups import Grouping, PackedRows, Padding, RowsByLength
from replicax.data.row_pass import Blocks, Numbers, RowPass, RowStep, Task, leaves_out, rows_of
from replicax.data.row_plans import (
    Block,
    Item,
    RandomAccess,
    RowFiles,
    Shuffle,
    file_blocks,
    file_items,
    index_steps,
    order_of,
)
from replicax.data.row_process import RowProcesses
from replicax.data.sources import check_batch_size
from replicax.errors import ArgumentError, BatchError
from replicax.runtime.devices import cores
from replicax.typing import PyTree

_ON_ERROR = ("raise", "skip")
_MOST_ROWS_OF_A_TASK = 32


class Rows:
    """Rows of a source, which are read when they are needed: what the readers of `rx.data` return.

    A row is any pytree of arrays and numbers. The methods return new `Rows`, and read nothing. `batch` makes batches
    for `strategy.distribute_dataset` and `fit`. Each row comes once in each epoch, on any number of workers.

    Args:
        source: A source with random access: anything with `len` and `[index]`, such as a list of rows, a torch
            `Dataset` or a source of Grain's. Or one in files, with a sequence `files` and a method
            `read(file, first)`, which yields the rows of a file (given by its index) from number `first` on.

    Raises:
        ArgumentError: `source` is neither.

    Example:
        >>> rows = rx.data.Rows([{"x": float(i)} for i in range(5)]).map(lambda row: {"x": 2 * row["x"]})
        >>> [batch["x"].tolist() for batch in rows.batch(2)]
        [[0.0, 2.0], [4.0, 6.0], [8.0]]
    """

    def __init__(self, source: RandomAccess | RowFiles):
        kind = type(source)
        self._in_files = isinstance(source, RowFiles)
        if isinstance(source, (str, bytes, dict)) or not (
            self._in_files or (hasattr(kind, "__getitem__") and hasattr(kind, "__len__"))
        ):
            raise ArgumentError(
                f"`source` has rows that can be read by their number (`len` and `[index]`), or `files` and `read(file, "
                f"first)`, got {source!r:.100}."
            )
        self._source: Any = source
        self._steps: tuple[RowStep, ...] = ()
        self._shuffle: Shuffle | None = None
        self._epochs = 1  # of a loop over the batches; 0: without end

    def _with(self, **changes: object) -> Rows:
        new = copy.copy(self)
        vars(new).update(changes)
        return new

    def map(self, function: Callable[[PyTree], PyTree]) -> Rows:
        """Returns the rows that `function` makes of these; it is called in threads, and gets one row.

        The row may be an object of the source's own: return a new one, and leave that as it is.

        Example:
            >>> rx.data.Rows([1, 2]).map(lambda row: row + 1).batch(2).first()
            array([2, 3])
        """
        return self._with(_steps=(*self._steps, RowStep("map", _checked(function, "function"))))

    def random_map(self, function: Callable[[PyTree, np.random.Generator], PyTree], seed: int = 0) -> Rows:
        """Returns the rows that `function(row, generator)` makes of these, with random numbers of each row's own.

        The numbers depend on the seed, the epoch and the row: they are the same on any number of workers, and after a
        restart.

        Example:
            >>> rows = rx.data.Rows([0.0, 0.0]).random_map(lambda row, draw: row + draw.uniform(), seed=1)
            >>> np.array_equal(rows.batch(2).first(), rows.batch(2).first())
            True
        """
        step = RowStep("random_map", _checked(function, "function"), checked_int("seed", seed))
        return self._with(_steps=(*self._steps, step))

    def filter(self, keep: Callable[[PyTree], bool]) -> Rows:
        """Returns the rows for which `keep` is true. Batches are filled with the rows that follow.

        Example:
            >>> rx.data.Rows(range(6)).filter(lambda row: row % 2 == 0).batch(2).first()
            array([0, 2])
        """
        return self._with(_steps=(*self._steps, RowStep("filter", _checked(keep, "keep"))))

    def shuffle(self, seed: int, *, buffer: int = 16_384, files: int = 16) -> Rows:
        """Returns the rows in a random order, another one in each epoch; the same on each worker, and after a restart.

        Where any row can be read by its number, all rows are shuffled, at no cost in memory. Rows of files are drawn
        from several open files, whose order is random too; of each a part of the buffer is read and shuffled.

        Args:
            seed: Decides about the order.
            buffer: Rows in memory, not decoded, for a source in files.
            files: How many files a worker reads at a time.

        Example:
            >>> rx.data.Rows(range(6)).shuffle(seed=1).batch(6).first().tolist()
            [2, 0, 5, 1, 3, 4]
        """
        of = (checked_int("seed", seed), checked_int("buffer", buffer, least=1), checked_int("files", files, least=1))
        return self._with(_shuffle=Shuffle(*of))

    def repeat(self, epochs: int | None = None) -> Rows:
        """Returns the rows of several epochs, one after the other: as `repeat` of their batches, which see.

        Example:
            >>> [batch.tolist() for batch in rx.data.Rows(range(3)).repeat(2).batch(2)]
            [[0, 1], [2], [0, 1], [2]]
        """
        return self._with(_epochs=_repeated(self._epochs, epochs))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        on_error: str = "raise",
        threads: int | None = None,
        processes: int | None = None,
    ) -> RowBatches:
        """Returns batches of rows, for `strategy.distribute_dataset` and `fit`.

        Args:
            batch_size: Rows of a global batch. The last batch of an epoch may have fewer.
            drop_remainder: Whether a last batch with fewer rows is left out; of a worker that reads files of its own,
                its own last one.
            on_error: What happens to a row that cannot be read or decoded. `"raise"`: a `DataError` on every worker.
                `"skip"`: it is left out, logged and counted (`dataset.bad_rows`), and batches are filled with the rows
                that follow.
            threads: How many threads read and decode on each worker; None for as many as it has cores.
            processes: In how many processes rows are read and mapped instead: for functions in pure Python, which hold
                Python's lock. The source and the functions are sent to them; a thread for each waits for its rows.

        Raises:
            ArgumentError: An argument is not one of those.
        """
        return RowBatches(
            self, batch_size, drop_remainder=drop_remainder, on_error=on_error, threads=threads, processes=processes
        )

    def padded_batch(
        self,
        batch_size: int,
        shapes: PyTree = None,
        values: PyTree = 0,
        *,
        drop_remainder: bool = False,
        **options: Any,
    ) -> RowBatches:
        """Returns batches of rows whose arrays are padded at their ends to one shape.

        Each other length of a batch is another shape, for which a step is compiled anew: prefer fixed `shapes`. Every
        worker decodes all rows.

        Args:
            batch_size: Rows of a global batch.
            shapes: A pytree as the rows, with a shape for each array; a dimension of None is as long as in the longest
                row of the batch. None if all are so.
            values: What is added: one value, or a pytree as the rows. Each array's dtype must hold it; floats may be
                rounded.
            drop_remainder: As in `batch`.
            options: `on_error`, `threads` and `processes`, as in `batch`.

        Raises:
            ArgumentError: An argument is not one of those; while iterating: no array can have such a shape or value.
            DataError: While iterating: a row does not fit into its shape, or has another structure.

        Example:
            >>> rx.data.Rows([np.array([1, 2, 3]), np.array([4])]).padded_batch(2).first()
            array([[1, 2, 3],
                   [4, 0, 0]])
        """
        return self.bucketed_batch(
            lambda row: 0, (), [check_batch_size(batch_size)], shapes, values, drop_remainder=drop_remainder, **options
        )

    def bucketed_batch(
        self,
        length: Callable[[PyTree], int],
        boundaries: Sequence[int],
        batch_sizes: Sequence[int],
        shapes: PyTree = None,
        values: PyTree = 0,
        *,
        drop_remainder: bool = False,
        **options: Any,
    ) -> RowBatches:
        """Returns batches of rows of about one length, padded: `tf.data`'s `bucket_by_sequence_length`.

        Args:
            length: Returns the length of a row, a number of at least 0.
            boundaries: Lengths, ascending. A row belongs to the first bucket whose boundary is larger than its length.
            batch_sizes: Rows of a global batch of each bucket: one number more than boundaries.
            shapes: As in `padded_batch`.
            values: As in `padded_batch`.
            drop_remainder: Whether rows that are left at the end, too few for a batch of their bucket, are left out.
            options: `on_error`, `threads` and `processes`, as in `batch`.

        Raises:
            ArgumentError: As in `padded_batch`.
            DataError: As in `padded_batch`; or `length` has failed, or returned no such number.

        Example:
            >>> rows = rx.data.Rows([np.ones(n) for n in (1, 5, 2, 6)])
            >>> [batch.shape for batch in rows.bucketed_batch(len, [4], [2, 2])]
            [(2, 2), (2, 6)]
        """
        by_length = RowsByLength(
            _checked(length, "length"), boundaries, batch_sizes, Padding(shapes, values), drop_remainder
        )
        return RowBatches(self, max(by_length.sizes), grouping=by_length, **options)

    def packed_batch(self, batch_size: int, lengths: Mapping[str, int], **options: Any) -> RowBatches:
        """Returns batches of packed rows, each of as many short rows as fit: by Grain's first-fit packing.

        Rows are dicts of arrays, which differ in their first dimensions only. Besides each feature, a batch has
        `<name>_segment_ids`, int32: which of its rows an element is of, from 1, and 0 where none is; and
        `<name>_positions`, int32: its place in that row. An attention mask is
        `segment_ids[:, :, None] == segment_ids[:, None, :]`.

        The order does not depend on the number of workers: all of them read all rows, and pack them.

        Args:
            batch_size: Packed rows of a global batch.
            lengths: For each feature that is packed, its length in a packed row. Other features are left out.
            options: `on_error`, `threads` and `processes`, as in `batch`.

        Raises:
            ArgumentError: An argument is not one of those, or Grain is missing.
            DataError: While iterating: a feature is missing, is too long, or has another dtype or other dimensions
                behind the first than in the first row.

        Example:
            >>> rows = rx.data.Rows([{"tokens": np.full(n, n)} for n in (3, 2, 2)])
            >>> batch = rows.packed_batch(2, {"tokens": 5}).first()
            >>> batch["tokens"].tolist(), batch["tokens_segment_ids"].tolist()
            ([[3, 3, 3, 2, 2], [2, 2, 0, 0, 0]], [[1, 1, 1, 2, 2], [1, 1, 0, 0, 0]])
        """
        size = check_batch_size(batch_size)
        return RowBatches(self, size, grouping=PackedRows(size, lengths), **options)

    def __len__(self) -> int:
        """Number of rows, where it is known without reading them: not of files, nor after a `filter`."""
        if self._in_files or any(step.kind == "filter" for step in self._steps):
            raise ArgumentError("The number of rows of this source is not known before its end.")
        return len(self._source)

    def __bool__(self) -> bool:
        return True  # Otherwise Python would call `__len__`, and not every source knows its length.

    def __repr__(self) -> str:
        return f"Rows({self._source!r:.100})"


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    if not callable(function):
        raise ArgumentError(f"`{name}` is a function of a row, got {function!r:.100}.")
    return function


class RowBatches(Iterable[PyTree]):
    """Global batches of `Rows`, made by `Rows.batch`; for `strategy.distribute_dataset` and `fit`.

    Iterating over it reads batches of NumPy arrays in this process, each time those of the next epoch. Epoch `e` of
    `fit` has those of epoch `e`; a later `fit` of the same model goes on, unless `initial_epoch` says where it begins.

    Example:
        >>> batches = rx.data.Rows(range(5)).batch(2)
        >>> len(batches), [batch.tolist() for batch in batches]
        (3, [[0, 1], [2, 3], [4]])
    """

    def __init__(
        self,
        rows: Rows,
        batch_size: int,
        *,
        grouping: Grouping | None = None,
        drop_remainder: bool = False,
        on_error: str = "raise",
        threads: int | None = None,
        processes: int | None = None,
    ):
        if not isinstance(rows, Rows):
            raise ArgumentError(f"`rows` is an rx.data.Rows, got {rows!r:.100}.")
        if on_error not in _ON_ERROR:
            raise ArgumentError(f"`on_error` is one of {_ON_ERROR}, got {on_error!r}.")
        self._rows, self.batch_size, self._on_error = rows, check_batch_size(batch_size), on_error
        self._grouping, self._drops = grouping, drop_remainder
        self._threads = cores() if threads is None else checked_int("threads", threads, least=1)
        self._processes: RowProcesses | None = None
        if processes is not None:
            if threads is not None:
                raise ArgumentError("Give `threads` or `processes`: each process is asked by one thread.")
            self._threads = checked_int("processes", processes, least=1)
            self._processes = RowProcesses(
                functools.partial(rows_of, rows._source, rows._in_files, rows._steps, on_error == "skip")
            )
        self._passes, self._epochs = 0, rows._epochs
        self._functions: tuple[Callable[[PyTree], PyTree], ...] = ()

    def repeat(self, epochs: int | None = None) -> RowBatches:
        """Returns the same batches for several epochs, one after the other; for loops that count steps.

        Each epoch has another order, if the rows are shuffled, and the last batch of each has what is left.

        Args:
            epochs: How many; None or -1 for no end.

        Example:
            >>> [batch.tolist() for batch in rx.data.Rows(range(3)).batch(2).repeat(2)]
            [[0, 1], [2], [0, 1], [2]]
        """
        new = copy.copy(self)
        new._passes, new._epochs = 0, _repeated(self._epochs, epochs)
        return new

    def map(self, function: Callable[[PyTree], PyTree]) -> RowBatches:
        """Returns the batches that `function` makes of these, row by row; it gets the rows of one worker.

        Example:
            >>> rx.data.Rows([1, 2]).batch(2).map(lambda batch: batch * 10).first()
            array([10, 20])
        """
        new = copy.copy(self)
        new._passes, new._functions = 0, (*self._functions, _checked(function, "function"))
        return new

    @property
    def epochs(self) -> int:
        """How many epochs a loop over the batches takes, as given to `repeat`; 0 for no end."""
        return self._epochs

    def is_last(self, epoch: int) -> bool:
        """Returns whether an epoch, counted from 0, is the last one before a loop over the batches ends."""
        return self._epochs > 0 and (epoch + 1) % self._epochs == 0

    def __iter__(self) -> Iterator[PyTree]:
        epoch, self._passes = self._passes, self._passes + max(1, self._epochs)
        return self._from(epoch)

    def _from(self, epoch: int) -> Iterator[PyTree]:
        while True:
            batch = None
            for batch, *_ in self.read(Position(epoch), None):
                yield batch
            if batch is None or self.is_last(epoch):
                return
            epoch += 1

    def __len__(self) -> int:
        if self._grouping is not None or not self._epochs:
            raise ArgumentError("The number of these batches is not known before their end.")
        rows = len(self._rows)
        return self._epochs * (rows // self.batch_size if self._drops else -(-rows // self.batch_size))

    def __bool__(self) -> bool:
        return True  # As above.

    @property
    def makes_all(self) -> bool:
        """Whether every worker makes all batches, since they depend on what is in the rows."""
        return self._grouping is not None

    def first(self) -> PyTree:
        """Returns the first batch of the first epoch, to look at it."""
        with contextlib.closing(self.read(Position(), None)) as batches:
            for each in batches:
                return each.batch
        raise BatchError(f"The dataset has no row: {self._rows}.")

    @property
    def files(self) -> int | None:
        """Number of files; None where any row can be read by its number."""
        return len(self._rows._source.files) if self._rows._in_files else None

    @property
    def identity(self) -> str:
        """A short text that differs where the rows, or their order, do."""
        source, shuffle = self._rows._source, self._rows._shuffle
        of = f"{len(source.files)} files, {_digest(source.files)}" if self._rows._in_files else f"{len(source)} rows"
        if shuffle is None:
            return of
        order = f"seed {shuffle.seed}"
        return f"{of}, {order}" if not self._rows._in_files else f"{of}, {order}, {shuffle.of(len(source.files))[1:]}"

    @property
    def grouping(self) -> str:
        """A short text that differs where other rows are in a batch, or batches in a loop."""
        drops = ", whole ones only," if self._drops else ""
        return f"batches of {self.batch_size}{drops} {self._epochs} times"

    def read(
        self,
        position: Position,
        share: Callable[[int], tuple[int, int]] | None,
        worker: int = 0,
        workers: int = 1,
        times: InputTimes | None = None,
    ) -> Generator[WorkerBatch]:
        """Yields a worker's batches that follow a position.

        Args:
            position: Where the loop is.
            share: Returns which rows of a global batch of so many rows are the worker's; None for all of them. For a
                worker that reads files of its own, of how many rows its batches are.
            worker: Among how many workers the files are dealt, and which of them this is.
            workers: See `worker`.
            times: Where to note what takes how long.
        """
        rows = self._rows
        skips = self._on_error == "skip"
        running = RowPass(rows._source, rows._in_files, rows._steps, position.number, skips, times, self._processes)
        tasks = self._tasks(position, share, worker, workers)
        if self._grouping is not None:
            batches = running.groups(tasks, self._grouping, self._threads)
        else:
            size = self.batch_size if share is None else -int(np.subtract(*share(self.batch_size)))
            batches = running.batches(tasks, size, self._threads)
            batches = _whole(batches, size) if self._drops else batches
        return _mapped(batches, self._functions) if self._functions else batches

    def _tasks(
        self, position: Position, share: Callable[[int], tuple[int, int]] | None, worker: int, workers: int
    ) -> Generator[Task]:
        """Yields the rows that are read one after the other in one thread."""
        rows, source, size = self._rows, self._rows._source, self.batch_size
        if not rows._in_files:
            count, shuffle = len(source), rows._shuffle
            indices = np.asarray if shuffle is None else order_of(count, shuffle.seed, position.number)
            for numbers in index_steps(count, position, size):
                if self._drops and self._grouping is None and len(numbers) < size and not self._leaves_out:
                    return  # For all workers alike: the part of one may be as large as that of a whole batch.
                first, end = (0, len(numbers)) if share is None else share(len(numbers))
                most = self._most_of_a_task(end - first)
                for start in range(first, max(end, first + 1), most):
                    stop = min(start + most, end)
                    yield Task(Numbers(numbers[start:stop], indices), stop == end)
            return
        if self._comes_in_blocks and not position.beyond:
            deals = workers > 1
            with contextlib.closing(file_blocks(source, position, worker, workers)) as blocks:
                for cut in _cut(blocks, share(size)[1] if share is not None and deals else size):
                    first, end = 0, sum(block.rows for block in cut)
                    if share is not None and not deals:
                        first, end = share(end)
                    yield Task(Blocks(_part(cut, first, end)), None if deals else True)
            return
        items_of_files = file_items(source, position, rows._shuffle, worker, workers)
        with contextlib.closing(items_of_files):
            if workers > 1 or share is None:
                own = size if share is None else share(size)[1]
                for items in _listed(items_of_files, self._most_of_a_task(own)):
                    yield Task(items, None)
                return
            for step in _listed(items_of_files, size):
                first, end = share(len(step))
                most = self._most_of_a_task(end - first)
                for start in range(first, max(end, first + 1), most):
                    stop = min(start + most, end)
                    yield Task(step[start:stop], stop == end)

    @property
    def _leaves_out(self) -> bool:
        return leaves_out(self._rows._steps, self._on_error == "skip")

    @property
    def _comes_in_blocks(self) -> bool:
        rows = self._rows
        is_plain = not rows._steps and rows._shuffle is None and self._on_error == "raise"
        is_plain = is_plain and self._grouping is None
        return is_plain and hasattr(rows._source, "blocks")

    def _most_of_a_task(self, rows: int) -> int:
        if not self._rows._steps and hasattr(self._rows._source, "rows_at"):
            return max(1, rows)  # A batch that is read at once needs no copy.
        return max(1, min(_MOST_ROWS_OF_A_TASK, rows // self._threads))

    def __repr__(self) -> str:
        return f"RowBatches({self._rows!r}, {self.batch_size})"


def _whole(batches: Generator[WorkerBatch], size: int) -> Generator[WorkerBatch]:
    """Yields the batches that have `size` rows."""
    with contextlib.closing(batches):
        yield from (each for each in batches if each.batch is None or count_rows(each.batch) >= size)


def _mapped(batches: Generator[WorkerBatch], functions: Sequence[Callable[[PyTree], PyTree]]) -> Generator[WorkerBatch]:
    """Yields batches that went through functions, which keep their rows."""
    with contextlib.closing(batches):
        for each in batches:
            made = each.batch
            for function in functions if made is not None else ():
                made = host_batch(function(made), "The result of a function of a batch of rows")
            if made is not None and count_rows(made) != count_rows(each.batch):
                raise BatchError(
                    f"A function made {count_rows(made)} rows of a batch of {count_rows(each.batch)}. Drop rows with "
                    "`rows.filter`, before they are batched."
                )
            yield each._replace(batch=made)


def _repeated(epochs: int, times: int | None) -> int:
    """Returns how many epochs there are when all are repeated; 0: without end."""
    return (
        0 if times in (None, -1) else epochs * checked_int("epochs", times, least=1, note=", or None or -1 for no end")
    )


def _listed(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while found := list(itertools.islice(items, size)):
        yield found


def _cut(blocks: Iterator[Block], size: int) -> Iterator[list[Block]]:
    """Yields blocks of `size` rows together; the last may have fewer."""
    found: list[Block] = []
    missing = size
    for block in blocks:
        start = 0
        while start < block.rows:
            stop = min(block.rows, start + missing)
            found.append(block.part(start, stop))
            missing -= stop - start
            start = stop
            if not missing:
                yield found
                found, missing = [], size
    if found:
        yield found


def _part(blocks: Sequence[Block], first: int, end: int) -> Iterator[Block]:
    """Yields some of the rows of blocks: from number `first` on, up to `end`."""
    for block in blocks:
        start, stop = max(0, first), min(block.rows, end)
        if stop > start:
            yield block.part(start, stop)
        first, end = first - block.rows, end - block.rows


def _digest(names: Sequence[str]) -> str:
    # Below the folder that all share: data may have moved, and workers may see it at different places.
    parts = [str(name).replace("\\", "/").split("/") for name in names]
    folders = zip(*(each[:-1] for each in parts), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda at: len(set(at)) == 1, folders))
    ends = "\n".join("/".join(each[shared:]) for each in parts)
    return hashlib.blake2b(ends.encode(), digest_size=4).hexdigest()
