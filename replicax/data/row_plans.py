"""Plans: which rows a worker reads in a pass, in which order. Pure functions of a position; no row is decoded here.

There are two kinds of sources. Of one with *random access* (`RandomAccess`) any row can be read by its number: one
shuffle goes over all of it, by a permutation that takes no memory, and the order is the same on any number of workers.
Of one in *files* (`RowFiles`) the rows of a file come one after the other. Shuffled, several files are open at a time,
the next row is drawn from any of them, and each file is shuffled in windows of consecutive rows. All draws are
functions of the seed, the number of the pass and the rows that the loop has got. So a buffer needs no place in a
checkpoint: how many rows of each file the loop has got says what is in it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from replicax.data.batches import count_rows
from replicax.data.position import Position
from replicax.errors import ArgumentError, DataError

_ROUNDS = 5  # of columns and rows
_BLOCK = 1 << 14  # numbers whose order is computed at once


class RandomAccess(Protocol):
    """A source of which any row can be read: a list, a torch `Dataset`, a source of Grain's, ...

    It may have three methods more: `row_of(raw)` makes a row of what `[index]` returns, if that is to be decoded;
    `rows_at(indices)` returns many rows as one batch (with `lasts = True` in memory that nothing else writes to);
    `name_of(index)` says in messages where a row is: the file, and the record in it.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@runtime_checkable
class RowFiles(Protocol):
    """A source in files, or in other parts that are read from their beginning."""

    @property
    def files(self) -> Sequence[str]:
        """Their names, in the same order on every worker."""

    def read(self, file: int, first: int) -> Iterator[Any]:
        """Yields the rows of a file from number `first` on; a `DataError` in the place of a row that is damaged."""

    # It may have three methods more: `row_of(raw)` makes a row of what `read` yields, in a thread; `rows_at(raws)`
    # makes a batch of several; and `blocks(file, first)` yields the same rows as batches of any sizes.


class Shuffle(NamedTuple):
    """How a source is shuffled."""

    seed: int
    buffer: int  # rows in memory, for a source in files
    files: int  # that are read at a time

    def of(self, count: int) -> Shuffle:
        """Returns the shuffle for a source of `count` files: one window for each of those that are open."""
        files = max(1, min(self.files, count))
        return Shuffle(self.seed, max(1, self.buffer // files), files)


class Block(NamedTuple):
    """Rows of a file that are a batch already."""

    shard: int  # the file's index
    number: int  # of the first row
    ends: bool  # whether the file ends with them
    batch: Any

    @property
    def rows(self) -> int:
        """How many there are."""
        return count_rows(self.batch)

    def part(self, start: int, end: int) -> Block:
        """Returns some of the rows."""
        batch = jax.tree.map(lambda leaf: leaf[start:end], self.batch)
        return Block(self.shard, self.number + start, self.ends and end == self.rows, batch)


class Item(NamedTuple):
    """A row that is still to be read or decoded."""

    shard: int  # the file's index; 0 where access is random
    number: int  # in the order of the shard
    ends: bool  # whether the shard ends with it
    raw: Any  # the record, or the error that stands in its place; where access is random, the index
    record: int  # its number in the file


def drawn(*of: int) -> int:
    """Returns a number of 64 bits that depends on integers, and on nothing else."""
    return int.from_bytes(hashlib.blake2b(repr(of).encode(), digest_size=8).digest(), "big")


def order_of(rows: int, *key: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function that says which of `rows` rows have numbers, which ascend, in the order of a key."""
    permuted = permutation(rows, *key)

    @functools.lru_cache(maxsize=2)
    def block(number: int) -> np.ndarray:
        return permuted(np.arange(number * _BLOCK, min(rows, (number + 1) * _BLOCK)))

    def indices(numbers: np.ndarray) -> np.ndarray:
        if not len(numbers):
            return numbers
        first, last = int(numbers[0]) // _BLOCK, int(numbers[-1]) // _BLOCK
        if last - first > 1:
            return permuted(numbers)
        # Many at once: for one batch, the calls of NumPy's functions take most of the time.
        found = block(first) if first == last else np.concatenate([block(first), block(last)])
        start = int(numbers[0]) - first * _BLOCK
        follow_each_other = numbers[-1] - numbers[0] == len(numbers) - 1
        return found[start : start + len(numbers)] if follow_each_other else found[numbers - first * _BLOCK]

    return indices


def permutation(rows: int, *key: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns the function that says which of `rows` rows have numbers in an order that depends on the key.

    A Feistel network over a rectangle of places: it turns each column by an amount of its own, then each row, and so
    on. A place that has no number is sent through it again. Its memory is some tables as long as the square root of
    `rows`. (Grain's `index_shuffle` is one, too, but for one number at a time and of 32 bits, and needs Grain's import
    of seconds.)
    """
    rows = max(1, rows)
    width = math.isqrt(rows - 1) + 1
    height = -(-rows // width)
    # A sum of amounts is a place modulo the height or width: as an index, of tables that repeat.
    amounts = [
        np.tile(_mixed(np.arange(count, dtype=np.uint32) + np.uint32(drawn(*key, number) >> 32)) % limit, _ROUNDS + 1)
        for number, (count, limit) in enumerate([(width, height), (height, width)] * _ROUNDS)
    ]
    turns = [each.astype(np.int64) for each in amounts]
    first_of_row = np.tile(np.arange(height) * width, _ROUNDS + 1)
    in_row = np.tile(np.arange(width), _ROUNDS + 1)

    def once(numbers: np.ndarray) -> np.ndarray:
        row = numbers // width
        column = numbers - row * width
        # `take` is quicker than an index; that none is outside need not be checked.
        for of_column, of_row in zip(turns[::2], turns[1::2], strict=True):
            row += of_column.take(column, mode="clip")
            column += of_row.take(row, mode="clip")
        found: np.ndarray = first_of_row.take(row, mode="clip") + in_row.take(column, mode="clip")
        return found

    def permuted(numbers: np.ndarray) -> np.ndarray:
        found = once(numbers)
        while len(outside := np.nonzero(found >= rows)[0]):
            found[outside] = once(found[outside])
        return found

    return permuted


def _mixed(values: np.ndarray) -> np.ndarray:
    """Returns 32 bits that depend on all bits of each value (the end of MurmurHash3)."""
    values ^= values >> np.uint32(16)
    values *= np.uint32(0x85EBCA6B)
    values ^= values >> np.uint32(13)
    values *= np.uint32(0xC2B2AE35)
    values ^= values >> np.uint32(16)
    return values


def index_steps(rows: int, position: Position, size: int) -> Iterator[np.ndarray]:
    """Yields the numbers of the rows of each global batch, of those that the loop has not got."""
    start, pieces, missing = position.skipped(0), [], size
    gaps = [*position.beyond.get(0, ()), (rows, rows)]
    for first, end in gaps:
        while start < first:
            stop = min(first, start + missing)
            pieces.append(np.arange(start, stop))
            missing -= stop - start
            start = stop
            if not missing:
                yield np.concatenate(pieces) if len(pieces) > 1 else pieces[0]
                pieces, missing = [], size
        start = end
    if pieces:
        yield np.concatenate(pieces)


def file_items(
    source: RowFiles, position: Position, shuffle: Shuffle | None, worker: int = 0, workers: int = 1
) -> Generator[Item]:
    """Yields the rows of the files that are dealt to a worker, of those that the loop has not got."""
    mine = files_of_worker(source, position, shuffle, worker, workers)
    begun = dict(position.begun)
    waiting = iter(mine)
    at_a_time = 1 if shuffle is None else shuffle.of(len(source.files)).files
    reading: dict[int, _Reader] = {}
    try:
        while True:
            while len(reading) < at_a_time and (file := next(waiting, None)) is not None:
                reader = _Reader(source, file, position, shuffle)
                if reader.following is None:
                    reader.close()
                    _check_length(source, file, 0 if file in position.beyond else begun.get(file, 0))
                    continue  # It has no rows.
                reading[file] = reader
                begun.setdefault(file, 0)
            if not reading:
                return
            # In the order in which they were dealt, so that the draw depends on the position alone.
            open_files = list(reading)
            file = open_files[0]
            if shuffle is not None and len(open_files) > 1:
                # A file's rows count until its end: the sum, and the first open file, are others for each row.
                done = sum(begun[each] for each in open_files)
                file = open_files[drawn(shuffle.seed, position.number, open_files[0], done) % len(open_files)]
            item = reading[file].take()
            begun[file] += 1
            if item.ends:
                reading.pop(file).close()
            yield item
    finally:
        for reader in reading.values():
            reader.close()


def files_of_worker(
    source: RowFiles, position: Position, shuffle: Shuffle | None, worker: int, workers: int
) -> list[int]:
    """Returns the indices of the files that a worker reads, in its order, of those that have not been read."""
    order = range(len(source.files))
    if shuffle is not None:
        order = np.random.default_rng([shuffle.seed, position.number, 1]).permutation(len(source.files)).tolist()
    done = position.dealt[1] if position.dealt is not None and position.dealt[0] == workers else position.done
    dealt = [file for file in order if file not in done]
    return [file for file in dealt[worker::workers] if file not in position.done]


def file_blocks(source: Any, position: Position, worker: int = 0, workers: int = 1) -> Generator[Block]:
    """Yields the rows of `file_items`, in their order in the files, by blocks."""
    for file in files_of_worker(source, position, None, worker, workers):
        number = position.skipped(file)
        latest: Block | None = None
        try:
            with contextlib.closing(source.blocks(file, number)) as blocks:
                for batch in blocks:
                    if latest is not None:
                        yield latest
                    latest = Block(file, number, False, batch)
                    number += latest.rows
        except (MemoryError, ArgumentError, GeneratorExit):
            raise
        except Exception as error:
            raise DataError.of(error, source.files[file], number) from error
        if latest is not None:
            yield latest._replace(ends=True)
        else:
            _check_length(source, file, number)


def _check_length(source: RowFiles, file: int, got: int) -> None:
    """Checks that a file without more rows has not lost some."""
    if got:
        raise DataError(
            f"it has fewer rows than the {got} that the training has got of it. It has changed.", source.files[file]
        )


class _Reader:
    """An open file: its rows in the order of the pass, without those that the loop has got."""

    def __init__(self, source: RowFiles, file: int, position: Position, shuffle: Shuffle | None):
        self._file, self._window = file, 1 if shuffle is None else shuffle.of(len(source.files)).buffer
        self._seed = None if shuffle is None else [shuffle.seed, position.number, file]
        self._begun = position.skipped(file)
        self._beyond = position.beyond.get(file, [])
        first = self._begun // self._window * self._window
        self._records = _caught(source, file, first)
        self._ahead = next(self._records, None)  # the first record after the window
        self._items = self._in_order(first)
        self.following = next(self._items, None)

    def take(self) -> Item:
        """Returns the next row."""
        item = self.following
        assert item is not None
        self.following = next(self._items, None)
        return item._replace(ends=self.following is None)

    def close(self) -> None:
        close = getattr(self._records, "close", None)
        if close is not None:
            close()

    def _in_order(self, first: int) -> Iterator[Item]:
        while self._ahead is not None:
            window = [self._ahead]
            for record in self._records:
                if len(window) == self._window:
                    self._ahead = record
                    break
                window.append(record)
            else:
                self._ahead = None
            order: Sequence[int] = range(len(window))
            if self._seed is not None:
                order = np.random.default_rng([*self._seed, first // self._window]).permutation(len(window)).tolist()
            for number, index in enumerate(order, first):
                if number >= self._begun and not any(start <= number < end for start, end in self._beyond):
                    yield Item(self._file, number, False, window[index], first + index)
            first += len(window)


def _caught(source: RowFiles, file: int, first: int) -> Iterator[Any]:
    """Yields the records of a file; what fails stands as an error in the place of the rest."""
    records: Iterator[Any] = iter(())
    try:
        records = source.read(file, first)
        yield from records
    except (MemoryError, ArgumentError):
        raise
    except Exception as error:
        yield DataError.of(error, source.files[file])
    finally:
        close = getattr(records, "close", None)
        if close is not None:
            close()
