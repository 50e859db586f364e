"""Global batches where workers come and go: each worker reads them whole, and splits them for the present world.

No worker waits here for another one, so none can wait for one that is gone. When the world changes, the pass over the
source goes on as it is; only the batches that the step has still to use are split anew, from their rows in host memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import numpy as np

import replicax.contracts.worlds as worlds
from replicax.data.batch_split import SplitBatch
from replicax.data.batches import count_rows
from replicax.data.fed_replicas import Receivers, ReceiversByWorld
from replicax.data.input_options import InputOptions
from replicax.data.input_steps import InputStepMaker, digest
from replicax.data.position import RowsRead
from replicax.data.shard_report import ShardSummary, row_digests
from replicax.group.renewal import note_source
from replicax.typing import Leaf, PyTree
from replicax.values import is_per_replica

#: Puts the parts of a batch on the devices of its receivers.
Put = Callable[[SplitBatch, Receivers], PyTree]


class WholeBatch(NamedTuple):
    """A global batch, as a reading gives it."""

    batch: PyTree  # of host arrays
    rows_read: list[RowsRead]
    lasts: bool  # whether the memory of the arrays stays as it is; else only until the next batch is taken


class Splitter:
    """Splits global batches for the present world and puts them on its devices."""

    def __init__(
        self,
        receivers: ReceiversByWorld,
        options: InputOptions,
        put: Put,
        everywhere: bool,
        note: Callable[[SplitBatch, Receivers], None],
    ):
        self._receivers, self._options = receivers, options
        self._put, self._everywhere = put, everywhere
        self._note = note  # called with the first batch that the loop gets in each world
        self._noted_in: int | None = None

    def ahead(self, batch: PyTree) -> _Placed | None:
        """Returns a batch for the world last seen by the thread that trains, or None if that fails; for any thread."""
        number, receivers = self._receivers.latest
        try:
            return self._placed(batch, number, receivers)
        except Exception:
            return None  # The world may have ended meanwhile. If it has not, `now` raises the error again.

    def now(self, batch: PyTree) -> _Placed:
        """Returns a batch for the present world; for the thread that trains."""
        return self._placed(batch, *self._receivers.now())

    def _placed(self, batch: PyTree, number: int, receivers: Receivers) -> _Placed:
        value = self._put(whole_split(batch, receivers, self._options, self._everywhere), receivers)
        note_source(_leaves(value), _Rows(self, batch, number))
        return _Placed(number, value)

    def note(self, batch: PyTree) -> None:
        """Tells of a batch that the loop gets, if it is the first in this world."""
        number, receivers = self._receivers.now()
        if number != self._noted_in:
            self._noted_in = number
            self._note(whole_split(batch, receivers, self._options, self._everywhere), receivers)


class _Placed(NamedTuple):
    """A batch on the devices of the world with this number."""

    number: int
    value: PyTree


class _Rows:
    """The rows that some arrays were made of; `replicax.group.renewal.Source` says what it does."""

    def __init__(self, splitter: Splitter, batch: PyTree, number: int):
        self.number = number
        # No reference to the arrays, which refer to this: so batches need no garbage collector to go.
        self._splitter, self._batch = splitter, batch
        self._later: tuple[int, list[Leaf]] | None = None

    def leaves(self) -> Sequence[Leaf]:
        number = worlds.number()
        if self._later is None or self._later[0] != number:
            self._later = (number, _leaves(self._splitter.now(self._batch).value))
        return self._later[1]

    def digest(self) -> str:
        return digest(self._batch)


class ReadAhead:
    """A global batch, in memory that nothing else changes, split for the world in which it was read."""

    def __init__(self, splitter: Splitter, batch: PyTree):
        self._splitter, self._batch = splitter, batch
        self._placed = splitter.ahead(batch)

    def value(self) -> PyTree:
        """Returns the batch on the devices of the present world."""
        placed = self._placed
        if placed is None or placed.number != worlds.number():
            placed = self._splitter.now(self._batch)
        self._splitter.note(self._batch)
        return placed.value


def whole_split(batch: PyTree, receivers: Receivers, options: InputOptions, everywhere: bool = False) -> SplitBatch:
    """Returns this worker's parts of a global batch: views."""
    if count_rows(batch) < receivers.num_replicas:
        # Whether a loop has a step must not depend on the world.
        options = dataclasses.replace(options, remainder="exact")
    maker = InputStepMaker(receivers.workers, None, options)
    maker.everywhere = everywhere
    split = maker.split(batch)
    assert split is not None
    return split


def summarized(
    batches: Generator[WholeBatch], receivers: Receivers, options: InputOptions
) -> tuple[ShardSummary, np.ndarray]:
    """Runs through all batches; returns which of their rows this worker's replicas get, and digests of all rows."""
    own, everything, steps = [row_digests([])], [row_digests([])], 0
    with contextlib.closing(batches):
        for batch, _, _ in batches:
            everything.append(row_digests([batch]))
            parts = whole_split(batch, receivers, options).parts
            if len(jax.tree.leaves(parts)[0]):
                own.append(row_digests([jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), parts)]))
                steps += 1
    return ShardSummary(np.concatenate(own), steps), np.concatenate(everything)


def _leaves(value: PyTree) -> list[Leaf]:
    leaves: list[Leaf] = jax.tree.leaves(value, is_leaf=is_per_replica)
    return leaves
