"""Where a training loop is in its data: which rows it has got, whichever worker read them.

A *shard* is a part of the data that is read by one worker, in an order of its own: a file, or a worker's own dataset. A
source that all workers read alike is one shard. How many rows of each shard the loop has got is all that a later pass,
with more or fewer workers, has to know.
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


class Position:
    """The rows of a pass that the training loop has got."""

    def __init__(self, number: int = 0):
        self.number = number  # of the pass, from 0
        self.rows = self.batches = 0  # rows of all workers, and steps, that the loop has got in this pass
        self.shards: int | None = None  # of the pass; None before its first step
        self.done: set[int] = set()  # shards of which the loop has got all rows
        self.begun: dict[int, int] = {}  # for other shards, how many rows it has got
        # Where workers come and go and a function makes per-replica batches: for how many replicas it made those of
        # this pass.
        self.replicas: int | None = None
        self._reading: dict[int, int] = {}

    def add(self, shards: int, rows_read: Iterable[RowsRead]) -> None:
        """Counts a step that the loop has got."""
        self.shards = shards
        self.batches += 1
        for worker, shard, rows in rows_read:
            # A worker reads one shard after the other.
            if (before := self._reading.get(worker, shard)) != shard:
                self.done.add(before)
                self.begun.pop(before, None)
            self._reading[worker] = shard
            self.begun[shard] = self.begun.get(shard, 0) + rows
            self.rows += rows

    def skipped(self, shard: int) -> int:
        """Returns how many rows of a shard that is not done the loop has got already."""
        return self.begun.get(shard, 0)

    def finish(self) -> None:
        """Ends the pass: the next one begins at the start."""
        if self.rows or self.batches:
            vars(self).update(vars(Position(self.number + 1)))

    def at_start(self) -> Position:
        """Returns the position for a pass that continues here: its workers read other shards, in another order."""
        new = copy.deepcopy(self)
        new._reading = {}
        return new

    def state(self) -> dict[str, object]:
        """Returns this position in a form that JSON can hold."""
        state: dict[str, object] = {"format": _FORMAT, "pass": self.number, "rows": self.rows, "batches": self.batches}
        if self.shards is not None:
            state["units"] = {
                "of": self.shards,
                "done": _ranges(self.done),
                "begun": {str(shard): rows for shard, rows in sorted(self.begun.items())},
            }
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
            units = state.get("units")
            if units is not None:
                position.shards = _count(units["of"])
                position.done = {shard for first, last in units["done"] for shard in range(first, last + 1)}
                position.begun = {int(shard): _count(rows) for shard, rows in units["begun"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"Not the state of a distributed dataset, as `get_state()` returns it: {state!r:.200} ({error!r})."
            ) from None
        return position


def _count(value: object) -> int:
    if not is_real(value) or int(value) != value or value < 0:
        raise ValueError(f"{value!r} is not a count")
    return int(value)


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
