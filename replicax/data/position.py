"""Where a training loop is in its data: which rows it has got, whichever worker read them.

A *shard* is a part of the data that is read in an order of its own: a file, or a worker's own dataset. A source that
all workers read alike is one shard. How many rows of each shard the loop has got is all that a later pass, with more or
fewer workers, has to know. Where a worker left out bad rows and went on with later ones, the loop has got rows beyond
the first ones: ranges of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from replicax.checks import is_real
from replicax.errors import ArgumentError
from replicax.typing import PyTree

_FORMAT = 1


class RowsRead(NamedTuple):
    """Rows of a step that a worker has read from a shard."""

    worker: int  # its index
    shard: int  # its index
    rows: int
    # Of sources that number their rows: the number of the first of these rows in the order of the shard, whether the
    # shard ends with them, and how many of them were bad and left out. The rows of others are the next ones, and a
    # shard has ended when its worker reads another one.
    first: int | None = None
    ends: int = 0  # 1 if it does
    bad: int = 0


class Position:
    """The rows of a pass that the training loop has got."""

    def __init__(self, number: int = 0):
        self.number = number  # of the pass, from 0
        self.rows = self.batches = 0  # rows of all workers, and steps, that the loop has got in this pass
        self.shards: int | None = None  # of the pass; None before its first step
        self.done: set[int] = set()  # shards of which the loop has got all rows
        self.begun: dict[int, int] = {}  # for other shards, how many of their first rows it has got
        # And which later ones: of each range the first, and the one after the last.
        self.beyond: dict[int, list[tuple[int, int]]] = {}
        self.bad = 0  # rows that were left out since they could not be read; they count as rows that the loop has got
        # Among how many workers the files were dealt in this pass, and which had been read to their end by then: with
        # as many workers the pass goes on in the same order.
        self.dealt: tuple[int, frozenset[int]] | None = None
        self.source: str | None = None  # what the rows are of, and their order; None if that is not known
        # Where workers come and go and a function makes per-replica batches: for how many replicas it made those of
        # this pass.
        self.replicas: int | None = None
        self._reading: dict[int, int] = {}
        self._ends: dict[int, int] = {}  # the numbers of rows of shards that have ended

    def add(self, shards: int, rows_read: Iterable[RowsRead]) -> None:
        """Counts a step that the loop has got."""
        self.shards = shards
        self.batches += 1
        for worker, shard, rows, first, ends, bad in rows_read:
            self.rows += rows
            self.bad += bad
            if first is not None:
                self._add_numbered(shard, first, first + rows, ends)
                continue
            # A worker reads one shard after the other.
            if (before := self._reading.get(worker, shard)) != shard:
                self.done.add(before)
                self.begun.pop(before, None)
            self._reading[worker] = shard
            self.begun[shard] = self.begun.get(shard, 0) + rows

    def _add_numbered(self, shard: int, first: int, end: int, ends: int) -> None:
        if ends:
            self._ends[shard] = end
        beyond = sorted([*self.beyond.pop(shard, ()), (first, end)])
        begun = self.begun.get(shard, 0)
        later: list[tuple[int, int]] = []
        for start, stop in beyond:
            if start <= begun:
                begun = max(begun, stop)
            elif later and start <= later[-1][1]:
                later[-1] = (later[-1][0], max(stop, later[-1][1]))
            else:
                later.append((start, stop))
        self.begun[shard] = begun
        if later:
            self.beyond[shard] = later
        elif begun == self._ends.get(shard):
            self.done.add(shard)
            del self.begun[shard], self._ends[shard]

    def check_source(self, source: str, shards: int) -> None:
        """Checks that the pass may go on with the rows of a source, and notes what they are of."""
        if self.rows and (self.shards != shards or self.source not in (None, source)):
            raise ArgumentError(
                f"The state is of other data: {self.source or f'{self.shards} part(s)'}, but this is {source}. "
                "Give the same data in the same order, and the same shuffle."
            )
        self.source = source

    def skipped(self, shard: int) -> int:
        """Returns how many rows of a shard that is not done the loop has got already."""
        return self.begun.get(shard, 0)

    def finish(self) -> None:
        """Ends the pass: the next one begins at the start."""
        if self.rows or self.batches:
            bad = self.bad
            self.go_on(Position(self.number + 1))
            self.bad = bad  # Until the next one has begun, they are those of the latest pass.

    def go_on(self, following: Position) -> None:
        """Becomes the position at which a following pass begins."""
        vars(self).update(vars(following))

    def at_start(self) -> Position:
        """Returns the position for a pass that continues here: its workers read other shards, in another order."""
        new = copy.copy(self)
        new.done, new.begun, new._ends, new._reading = {*self.done}, {**self.begun}, {**self._ends}, {}
        new.beyond = {shard: [*ranges] for shard, ranges in self.beyond.items()}
        return new

    def deal_to(self, workers: int) -> frozenset[int]:
        """Notes among how many workers the files are dealt; returns those that had ended when they were dealt so."""
        if self.dealt is None or self.dealt[0] != workers:
            self.dealt = (workers, frozenset(self.done))
        return self.dealt[1]

    def state(self) -> dict[str, object]:
        """Returns this position in a form that JSON can hold."""
        state: dict[str, object] = {"format": _FORMAT, "pass": self.number, "rows": self.rows, "batches": self.batches}
        if self.shards is not None:
            units: dict[str, object] = {
                "of": self.shards,
                "done": _ranges(self.done),
                "begun": {str(shard): rows for shard, rows in sorted(self.begun.items())},
            }
            if self.beyond:
                units["beyond"] = {str(shard): [*map(list, ranges)] for shard, ranges in sorted(self.beyond.items())}
            if self.dealt is not None:
                units["dealt"] = [self.dealt[0], _ranges(self.dealt[1])]
            if self.source is not None:
                units["source"] = self.source
            state["units"] = units
        if self.bad and self.rows:
            state["bad"] = self.bad
        if self.replicas is not None:
            state["replicas"] = self.replicas
        return state

    @classmethod
    def of(cls, state: Mapping[str, PyTree]) -> Position:
        """Returns the position that `state` describes."""
        try:
            position = cls(_count(state["pass"]))
            if state["format"] != _FORMAT:
                raise ValueError(f"format {state['format']!r}")
            position.rows, position.batches = _count(state["rows"]), _count(state["batches"])
            position.replicas = _count(state["replicas"]) if "replicas" in state else None
            position.bad = _count(state.get("bad", 0))
            units = state.get("units")
            if units is not None:
                position.shards = _count(units["of"])
                position.done = _numbers(units["done"])
                position.begun = {int(shard): _count(rows) for shard, rows in units["begun"].items()}
                position.beyond = {
                    int(shard): [(_count(first), _count(end)) for first, end in ranges]
                    for shard, ranges in units.get("beyond", {}).items()
                }
                position.source = units.get("source")
                if "dealt" in units:
                    position.dealt = (_count(units["dealt"][0]), frozenset(_numbers(units["dealt"][1])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"Not the state of a distributed dataset, as `get_state()` returns it: {state!r:.200} ({error!r})."
            ) from None
        return position


def _count(value: object) -> int:
    if not is_real(value) or int(value) != value or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return int(value)


def _numbers(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(_count(first), _count(last) + 1)}


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Returns numbers as ranges: the first and the last number of each.

    Example:
        >>> _ranges({0, 1, 2, 5})
        [[0, 2], [5, 5]]
    """
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges
