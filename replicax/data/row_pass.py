"""A pass over rows: reads and maps them in threads beside the step, and makes batches of them, in order."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import numpy as np

from replicax.data.batch_placement import aligned, owned_copy
from replicax.data.batches import (
    TO_ONE_SHAPE,
    Signature,
    array_of_row,
    count_rows,
    host_batch,
    is_like,
    leaf_name,
    signature,
)
from replicax.data.input_times import DECODING, READING, InputTimes
from replicax.data.rebatching import WorkerBatch, concatenated
from replicax.data.row_groups import Group, Grouping, RowFaultError
from replicax.data.row_plans import Block, Item
from replicax.data.row_process import RowProcesses
from replicax.errors import BatchError, DataError
from replicax.typing import PyTree

_log = logging.getLogger(__name__)
_QUICK_S = 0.000_5  # A task that takes less is done in this thread: to hand it to another takes longer.
_LOOKED_AT = 4  # how many of the last tasks: on a busy machine a quick one takes long now and then
_LOGGED = 10  # bad rows of a pass that are logged one by one
_ALL_BAD = 100  # rows from the beginning that may be bad before it is the pipeline that must be wrong


class RowStep(NamedTuple):
    """A function of the user's that each row goes through."""

    kind: str  # "map", "random_map" or "filter"
    function: Callable[..., Any]
    seed: int = 0


def leaves_out(steps: Sequence[RowStep], skips: bool) -> bool:
    """Returns whether a pass may leave out rows: those that cannot be read, or those that are filtered."""
    return skips or any(step.kind == "filter" for step in steps)


@dataclasses.dataclass(frozen=True)
class Numbers:
    """Rows that are read by their numbers."""

    numbers: np.ndarray  # in the order of the pass
    indices: Callable[[np.ndarray], np.ndarray]  # of numbers, in the source

    def items(self) -> list[Item]:
        """Returns the rows one by one."""
        found = self.indices(self.numbers).tolist()
        return [
            Item(0, number, False, index, index) for number, index in zip(self.numbers.tolist(), found, strict=True)
        ]

    def __len__(self) -> int:
        return len(self.numbers)

    def entries(self) -> list[tuple[int, ...]]:
        """Returns the rows as `WorkerBatch` has them."""
        numbers = self.numbers
        if numbers[-1] - numbers[0] == len(numbers) - 1:
            return [(0, len(numbers), int(numbers[0]), 0, 0)]
        return _entries(self.items(), ())


class Blocks(list[Block]):
    """Rows that are batches already."""

    def entries(self) -> list[tuple[int, ...]]:
        """Returns the rows as `WorkerBatch` has them."""
        return [(block.shard, block.rows, block.number, int(block.ends), 0) for block in self]

    def batch(self) -> PyTree:
        """Returns them as one."""
        return concatenated([block.batch for block in self])


class Task(NamedTuple):
    """Rows that are read one after the other in one thread."""

    rows: Numbers | list[Item] | Blocks
    ends_step: bool | None  # whether they are the worker's last ones of a global batch; None if it reads its own files

    def items(self) -> list[Item]:
        """Returns the rows one by one."""
        assert not isinstance(self.rows, Blocks)
        return self.rows.items() if isinstance(self.rows, Numbers) else self.rows


class _LeftOut(NamedTuple):
    """Stands in the place of a row that is left out."""

    error: DataError | None  # None if it was filtered


class _Read(NamedTuple):
    """The rows of a task when it is done: a batch, or rows one by one."""

    task: Task
    batch: PyTree = None
    items: Sequence[Item] = ()
    rows: Sequence[Any] = ()
    reading: float = 0.0  # which part of the time of the task went into reading, and not into decoding and mapping


class RowPass:
    """A pass of one worker.

    Args:
        source: A `RandomAccess` or `RowFiles`.
        in_files: Whether it is the latter.
        steps: The functions that each row goes through.
        number: The number of the pass.
        skips: Whether rows that cannot be read are left out.
        times: Where to note what takes how long.
        processes: Those that read and map rows one by one; None for threads.
    """

    def __init__(
        self,
        source: Any,
        in_files: bool,
        steps: Sequence[RowStep],
        number: int,
        skips: bool,
        times: InputTimes | None = None,
        processes: RowProcesses | None = None,
    ):
        self._processes = processes
        self._source, self._in_files, self._steps, self._number, self._skips = source, in_files, steps, number, skips
        self._times = times or InputTimes()
        self._leaves_out = leaves_out(steps, skips)
        self._row_of = getattr(source, "row_of", None)
        self._rows_at = None if steps else getattr(source, "rows_at", None)
        self._lasts: bool = getattr(source, "lasts", False)
        self._seen = self._bad = 0
        self._reuses: bool | None = None  # whether the source fills the same memory for row after row; None: not known
        self._known: list[Any] = []  # the rows that have been read until it is known
        self._reading = threading.Lock()  # where it may: then one thread reads at a time
        self._signature: Signature | None = None  # of the first batch
        self._took: collections.deque[float] = collections.deque(maxlen=_LOOKED_AT)  # seconds, of the last tasks

    def batches(self, tasks: Generator[Task], size: int, threads: int) -> Generator[WorkerBatch]:
        """Yields batches of `size` rows of tasks; the last may have fewer."""
        rows: list[Any] = []
        items: list[Item] = []  # of which these rows are, and those that were left out after them
        bad: list[Item] = []
        with ThreadPoolExecutor(threads, "replicax-reader") as pool, contextlib.closing(tasks):
            for read in self._in_order(pool, tasks, ahead=threads + 1):
                ends = read.task.ends_step
                is_whole = isinstance(read.task.rows, Blocks) or bool(
                    len(read.task.rows) == size if ends is None else ends
                )
                if read.batch is not None and is_whole and not rows and not self._leaves_out:
                    entries = _entries_of(read.task)
                    yield WorkerBatch(self._of_its_own(self._checked(read.batch, entries)), entries)
                    continue
                for item, row in zip(*_one_by_one(read), strict=True):
                    self._seen += 1
                    # A row that is left out counts with the rows before it: so the loop hears of the last ones, too.
                    if isinstance(row, _LeftOut):
                        bad += [item] if self._is_bad(row) else []
                    elif len(rows) == size and self._leaves_out:
                        yield self._made(rows, items, bad)
                        rows, items, bad = [], [], []
                    rows += [] if isinstance(row, _LeftOut) else [row]
                    items.append(item)
                    if len(rows) == size and ends is None and not self._leaves_out:
                        yield self._made(rows, items, bad)
                        rows, items, bad = [], [], []
                if ends and not self._leaves_out:
                    yield self._made(rows, items, bad) if rows else WorkerBatch(None, [])
                    rows, items, bad = [], [], []
            if rows:
                yield self._made(rows, items, bad)
        self._report()

    def groups(self, tasks: Generator[Task], grouping: Grouping, threads: int) -> Generator[WorkerBatch]:
        """Yields the batches that a grouping makes of the rows of tasks."""
        left_out: list[tuple[Item, bool]] = []  # rows that no batch has counted yet, and whether they are bad

        def rows() -> Generator[tuple[Item, Any]]:
            with ThreadPoolExecutor(threads, "replicax-reader") as pool, contextlib.closing(tasks):
                for read in self._in_order(pool, tasks, ahead=threads + 1):
                    for item, row in zip(*_one_by_one(read), strict=True):
                        self._seen += 1
                        if isinstance(row, _LeftOut):
                            left_out.append((item, self._is_bad(row)))
                        else:
                            yield item, row

        def made(group: Group, left: Sequence[tuple[Item, bool]]) -> WorkerBatch:
            items = [*group.items, *(item for item, _ in left)]
            return self._made(group.rows, items, [item for item, is_bad in left if is_bad])

        before: tuple[Group, list[tuple[Item, bool]]] | None = None
        try:
            with contextlib.closing(rows()) as stream:
                for group in grouping.groups(stream):
                    if before is not None:
                        yield made(*before)
                    before, left_out[:] = (group, left_out.copy()), []
            if before is not None:  # With what was left out after it, so that the loop hears of that, too.
                yield made(before[0], [*before[1], *left_out])
        except RowFaultError as error:
            raise DataError(f"{error.reason}.", *self._name(error.item)) from error.__cause__
        self._report()

    def _report(self) -> None:
        if self._bad > _LOGGED:
            _log.warning("%d of %d rows of this pass were bad and left out on this worker.", self._bad, self._seen)
        if self._bad and self._bad == self._seen:
            raise DataError(f"No row could be read: all {self._bad} of this pass are bad, and were left out.")

    def _in_order(self, pool: ThreadPoolExecutor, tasks: Iterator[Task], ahead: int) -> Generator[_Read]:
        """Yields what came of each task, in their order, with up to `ahead` more tasks under way."""
        under_way: collections.deque[Future[_Read]] = collections.deque()
        try:
            while True:
                began = time.monotonic()
                task = next(tasks, None)
                self._times.add(READING, time.monotonic() - began)
                if task is None:
                    break
                if self._is_quick and not under_way:
                    yield self._waited_for(self._run, task)
                    continue
                under_way.append(pool.submit(self._run, task))
                while under_way and (len(under_way) > ahead or self._is_quick):
                    yield self._waited_for(under_way.popleft().result)
            while under_way:
                yield self._waited_for(under_way.popleft().result)
        finally:
            for each in under_way:
                each.cancel()

    @property
    def _is_quick(self) -> bool:
        return not self._took or min(self._took) < _QUICK_S

    def _waited_for(self, done: Callable[..., _Read], *task: Task) -> _Read:
        began = time.monotonic()
        read = done(*task)
        seconds = time.monotonic() - began
        self._times.add(READING, seconds * read.reading)
        self._times.add(DECODING, seconds * (1 - read.reading))
        return read

    def _made(self, rows: Sequence[Any], items: Sequence[Item], bad: Sequence[Item]) -> WorkerBatch:
        try:
            batch = _stacked(rows)
        except _MisfitError as error:
            used = [item for item in items if not any(item is each for each in bad)]
            place = f" (file, record) = {self._name(used[0])} and {self._name(used[error.row])}"
            leaf = "" if error.leaf is None else leaf_name(rows[0], error.leaf)
            raise BatchError(f"The rows of a batch differ{leaf},{place}: {error}") from None
        entries = _entries(items, bad)
        return WorkerBatch(self._checked(batch, entries), entries)

    def _checked(self, batch: PyTree, entries: Sequence[tuple[int, ...]]) -> PyTree:
        """Returns a batch whose arrays have the ranks and dtypes of those before it."""
        if is_like(batch, self._signature):
            return batch
        found = host_batch(batch, "A batch of rows")
        signature_ = signature(found)
        self._signature = self._signature or signature_
        if signature_ != self._signature:
            shard, rows, first, *_ = entries[0]
            where = self._source.files[shard] if self._in_files else type(self._source).__name__
            raise BatchError(
                f"The batch of {rows} rows from number {first} on of {where} differs from the first one of this pass: "
                f"{_shown(signature_)}, and {_shown(self._signature)}. All batches have the same structure and dtypes: "
                "let a `map` give each value its dtype."
            )
        return found

    def _of_its_own(self, batch: PyTree) -> PyTree:
        """Returns a batch that the source has made, in memory that nothing else writes to."""
        return batch if self._lasts else jax.tree.map(owned_copy, batch)

    def _is_bad(self, row: _LeftOut) -> bool:
        if row.error is None:
            return False
        self._bad += 1
        if self._bad <= _LOGGED:
            _log.warning("A row was left out (on_error='skip'): %s", row.error)
        if self._bad == self._seen == _ALL_BAD:
            raise DataError(
                f"The first {_ALL_BAD} rows were all left out by on_error='skip': rather than the data, the functions "
                f"that read and map it seem to be wrong. The last one: {row.error}"
            ) from row.error
        return True

    # In a thread.

    def _run(self, task: Task) -> _Read:
        began = read = time.perf_counter()
        batch = self._at_once(task.rows)
        items, rows = [], []
        if batch is not None:
            read = time.perf_counter() if isinstance(task.rows, Numbers) else began  # Others have been read before.
        elif not isinstance(task.rows, Blocks):
            items = task.items()
            if self._processes is not None and items:
                rows = self._processes.rows(self._number, items)
            else:
                raws = self._raws(items)
                read = time.perf_counter()
                rows = [self._row(item, raw) for item, raw in zip(items, raws, strict=True)]
        done = time.perf_counter()
        self._took.append(done - began)
        return _Read(task, batch, items, rows, (read - began) / (done - began))

    def _at_once(self, rows: Numbers | list[Item] | Blocks) -> PyTree:
        """Returns rows as a batch, if the source makes one of them; else None."""
        if not rows:
            return None
        if isinstance(rows, Blocks):
            return rows.batch()
        if self._rows_at is None:
            return None
        try:
            if isinstance(rows, Numbers):
                return self._rows_at(rows.indices(rows.numbers))
            if not any(isinstance(item.raw, DataError) for item in rows):
                return self._rows_at([item.raw for item in rows])
        except Exception as error:
            _check_may_be_bad(error)  # One by one, to know which row it is.
        return None

    def rows(self, items: Sequence[Item]) -> list[Any]:
        """Returns what becomes of rows: each as it is in the end, or what stands in its place."""
        return [self._row(item, raw) for item, raw in zip(items, self._raws(items), strict=True)]

    def _raws(self, items: Sequence[Item]) -> list[Any]:
        """Returns what the source has for rows; copies, if it fills the same memory for row after row."""
        if self._in_files:
            return [item.raw for item in items]
        if self._reuses is False:
            return [self._raw(item) for item in items]
        with self._reading:
            if self._reuses is None:
                raws = [self._raw(item) for item in items]
                self._known += [raw for raw in raws if not isinstance(raw, DataError)]
                if len(self._known) > 1:
                    self._reuses = _share_memory(self._known)
                    self._known = []
                if not self._reuses:
                    return raws if self._reuses is False else [_copied(raw) for raw in raws]
            return [_copied(self._raw(item)) for item in items]

    def _raw(self, item: Item) -> Any:
        """Returns what the source has for a row, or the error that stands in its place."""
        try:
            return self._source[item.raw]
        except Exception as error:
            _check_may_be_bad(error)
            return DataError.of(error, *self._name(item))

    def _row(self, item: Item, raw: Any) -> Any:
        try:
            if isinstance(raw, DataError):
                raise raw
            row = raw if self._row_of is None else self._row_of(raw)
            for number, (kind, function, seed) in enumerate(self._steps):
                if kind == "map":
                    row = function(row)
                elif kind == "random_map":
                    # By the record and not by its place in the order: so a shuffle changes no augmentation.
                    of = [seed, self._number, item.shard, item.record, number]
                    row = function(row, np.random.default_rng(of))
                elif not function(row):
                    return _LeftOut(None)
            return row
        except Exception as error:
            _check_may_be_bad(error)
            found = DataError.of(error, *self._name(item))
            if self._skips:
                return _LeftOut(found)
            raise found from found.__cause__

    def _name(self, item: Item) -> tuple[str, int]:
        if self._in_files:
            return str(self._source.files[item.shard]), item.record
        name_of = getattr(self._source, "name_of", None)
        return (type(self._source).__name__, item.raw) if name_of is None else name_of(item.raw)


def rows_of(
    source: Any, in_files: bool, steps: Sequence[RowStep], skips: bool, number: int, items: Sequence[Item]
) -> list[Any]:
    """Returns what becomes of rows in the pass of a number; in another process."""
    return RowPass(source, in_files, steps, number, skips).rows(items)


def _check_may_be_bad(error: Exception) -> None:
    """Raises what no row can be blamed for."""
    if isinstance(error, MemoryError):
        raise error


def _shown(found: Signature) -> str:
    return f"{found.structure} of {', '.join(str(dtype) for _, dtype in found.leaves)}"


def _copied(row: Any) -> Any:
    """Returns a copy of a row; the row itself if it cannot be copied, such as an open file."""
    try:
        return copy.deepcopy(row)
    except Exception as error:
        _check_may_be_bad(error)
        return row


def _share_memory(rows: Sequence[Any]) -> bool:
    """Returns whether two rows are one object that can change, or have arrays at one place in memory."""
    seen = [place for row in rows for place in enumerate(_memory(row)) if place[1]]
    return len(set(seen)) < len(seen)


def _memory(row: Any) -> Iterator[int]:
    """Yields where a row and its parts are in memory; 0 for what cannot change."""
    yield 0 if isinstance(row, (int, float, complex, str, bytes)) else id(row)
    parts = [row]
    while parts:
        part = parts.pop()
        if isinstance(part, (dict, list, tuple)):
            parts += part.values() if isinstance(part, dict) else part
        elif isinstance(part, np.ndarray):
            yield part.__array_interface__["data"][0]
        else:
            yield part.data_ptr() if hasattr(part, "data_ptr") else 0  # torch's


def _one_by_one(read: _Read) -> tuple[Sequence[Item], Sequence[Any]]:
    if read.batch is None:
        return read.items, read.rows
    items = read.task.items()
    assert count_rows(read.batch) == len(items)
    return items, [jax.tree.map(lambda leaf: leaf[row], read.batch) for row in range(len(items))]  # noqa: B023


def _entries_of(task: Task) -> list[tuple[int, ...]]:
    return task.rows.entries() if isinstance(task.rows, (Blocks, Numbers)) else _entries(task.rows, ())


def _entries(items: Sequence[Item], bad: Sequence[Item]) -> list[tuple[int, ...]]:
    """Returns rows as `WorkerBatch` has them: shard, rows, the first of them, whether the shard ends, bad ones."""
    entries: list[list[int]] = []
    latest: dict[int, list[int]] = {}  # of each shard
    for item in items:
        entry = latest.get(item.shard)
        if entry is None or entry[2] + entry[1] != item.number:
            entry = latest[item.shard] = [item.shard, 0, item.number, 0, 0]
            entries.append(entry)
        entry[1] += 1
        entry[3] = int(item.ends)
    for item in bad:
        next(each for each in entries if each[0] == item.shard and 0 <= item.number - each[2] < each[1])[4] += 1
    return [tuple(entry) for entry in entries]


class _MisfitError(Exception):
    """A row that has another structure or other shapes than the first of its batch."""

    def __init__(self, row: int, text: str, leaf: int | None = None):
        self.row, self.leaf = row, leaf
        super().__init__(text)


def _stacked(rows: Sequence[Any]) -> PyTree:
    first, treedef = jax.tree.flatten(rows[0])
    leaves = [first]
    for index, row in enumerate(rows[1:], 1):
        found, structure = jax.tree.flatten(row)
        differs: bool = structure != treedef  # type: ignore[operator]  # JAX types it too narrowly.
        if differs:
            raise _MisfitError(index, _difference(rows[0], row))
        leaves.append(found)
    return jax.tree.unflatten(treedef, [_column(*each) for each in enumerate(zip(*leaves, strict=True))])


def _difference(first: PyTree, second: PyTree) -> str:
    """Returns how the structures of two rows differ: of dicts, where only one of them has a value."""
    rows = (first, second)
    if all(isinstance(row, dict) for row in rows):
        has = [{jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(row)} for row in rows]
        alone = {"first": has[0] - has[1], "second": has[1] - has[0]}
        told = [f"only the {row} has a value at {', '.join(sorted(keys))}" for row, keys in alone.items() if keys]
        if told:
            return f"{', '.join(told)}. Let a `map` give all rows the same keys, and values instead of None."
    return " and ".join(str(jax.tree.structure(row)) for row in rows)


def _column(leaf: int, values: Sequence[Any]) -> np.ndarray:
    arrays = [array_of_row(value) for value in values]
    first = arrays[0].shape
    for index, array in enumerate(arrays):
        if array.shape != first:
            raise _MisfitError(index, f"values of shapes {first} and {array.shape}. {TO_ONE_SHAPE}", leaf)
    dtypes = {array.dtype for array in arrays}
    scalars = None if first else np.array(values)
    dtype = np.result_type(*dtypes) if scalars is None else scalars.dtype
    if dtype.kind == "f" and all(each.kind in "iu" for each in dtypes):
        index = next(at for at, array in enumerate(arrays) if array.dtype.kind == "u")
        raise _MisfitError(
            index,
            f"integers that no dtype holds together, {sorted(map(str, dtypes))}: they would become floats",
            leaf,
        )
    if scalars is not None:
        return scalars
    return np.stack(arrays, out=aligned((len(arrays), *first), dtype)) if dtype.kind in "biufc" else np.stack(arrays)
