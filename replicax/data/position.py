"""Where a training loop is in its data: which rows it has been given, whoever read them.

A *unit* is a part of the data that is read by one worker, in an order of its own: a file, or a worker's shard. A source
that all workers read alike is one unit. How many rows of each unit have been given to the loop is all that a later
pass, with more or fewer workers, has to know.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from replicax.errors import ArgumentError

_FORMAT = 1


class Taken(NamedTuple):
    """Rows that a worker has taken from a unit."""

    worker: int
    unit: int
    rows: int


class Position:
    """The rows of a pass that have been given to the training loop.

    Attributes:
        number: Number of the pass, from 0.
        rows: Rows given in this pass, over all workers.
        batches: Steps given in this pass.
        units: Number of units of the pass; None before its first step.
        done: The units that have been used up.
        begun: For other units, how many rows have been given.
    """

    def __init__(self, number: int = 0):
        self.number = number
        self.rows = self.batches = 0
        self.units: int | None = None
        self.done: set[int] = set()
        self.begun: dict[int, int] = {}
        self._reading: dict[int, int] = {}

    def add(self, units: int, taken: Iterable[Taken]) -> None:
        """Counts a step that has been given to the loop."""
        self.units = units
        self.batches += 1
        for worker, unit, rows in taken:
            # A worker reads one unit after the other.
            if (before := self._reading.get(worker, unit)) != unit:
                self.done.add(before)
                self.begun.pop(before, None)
            self._reading[worker] = unit
            self.begun[unit] = self.begun.get(unit, 0) + rows
            self.rows += rows

    def skipped(self, unit: int) -> int:
        """Returns how many rows of a unit that is not done have been given already."""
        return self.begun.get(unit, 0)

    def finish(self) -> None:
        """Ends the pass: the next one begins at the start."""
        if self.rows or self.batches:
            vars(self).update(vars(Position(self.number + 1)))

    def at_start(self) -> Position:
        """Returns the position for a pass that goes on here: its workers read other units, in another order."""
        new = copy.deepcopy(self)
        new._reading = {}
        return new

    def state(self) -> dict[str, Any]:
        """Returns this position as JSON can hold it."""
        state: dict[str, Any] = {"format": _FORMAT, "pass": self.number, "rows": self.rows, "batches": self.batches}
        if self.units is not None:
            state["units"] = {
                "of": self.units,
                "done": _ranges(self.done),
                "begun": {str(unit): rows for unit, rows in sorted(self.begun.items())},
            }
        return state

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Position:
        """Returns the position that `state` describes.

        Raises:
            ArgumentError: It does not describe any.
        """
        try:
            position = cls(_count(state["pass"]))
            if state["format"] != _FORMAT:
                raise ValueError(f"format {state['format']!r}")
            position.rows, position.batches = _count(state["rows"]), _count(state["batches"])
            units = state.get("units")
            if units is not None:
                position.units = _count(units["of"])
                position.done = {unit for first, last in units["done"] for unit in range(first, last + 1)}
                position.begun = {int(unit): _count(rows) for unit, rows in units["begun"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"Not the state of a distributed dataset, as `get_state()` returns it: {state!r:.200} ({error!r})."
            ) from None
        return position


def _count(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or value < 0:
        raise ValueError(f"{value!r} is no count")
    return int(value)


def _ranges(numbers: Iterable[int]) -> list[list[int]]:
    """Returns numbers as ranges, first and last of each.

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
