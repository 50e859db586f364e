"""Global batches where workers come and go: each worker reads them whole, and splits them for the present world.

No worker waits here for another one, so none can wait for one that is gone. When the world changes, the pass over the
source goes on as it is; only the batches that the step has still to use are split anew, from their rows in host memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax

from replicax.contracts.group import current_group
from replicax.data.batch_placement import VALUES
from replicax.data.batch_split import SplitBatch
from replicax.data.batches import count_rows
from replicax.data.input_options import InputOptions
from replicax.data.input_steps import digest, own_part
from replicax.data.receivers import Receivers, ReceiversByWorld
from replicax.group.renewal import note_source
from replicax.typing import Leaf, PyTree
from replicax.values import is_per_replica


class WholeBatches:
    """One of the two ways of `passes.Agreement`: splits global batches for the present world."""

    def __init__(
        self, receivers: ReceiversByWorld, options: InputOptions, note: Callable[[SplitBatch, Receivers], None]
    ):
        self.form = VALUES
        self._receivers, self._options = receivers, options
        self._note = note  # called with the first batch that the loop gets in each world
        self._noted_in: int | None = None

    @property
    def receivers(self) -> Receivers:
        """Those of the world last seen by the thread that trains."""
        return self._receivers.latest[1]

    def split(self, data: PyTree, receivers: Receivers) -> SplitBatch:
        """Returns this worker's parts of a global batch: views."""
        # Whether a loop has a step must not depend on the world.
        remainder = "exact" if count_rows(data) < receivers.num_replicas else self._options.remainder
        split = own_part(data, receivers.workers, remainder, self.form.everywhere)
        assert split is not None
        return split

    def placed(self, data: PyTree) -> ReadAhead:
        """Puts a batch on the devices of the world in which it is read; it can be split anew for a later one."""
        return ReadAhead(self, data)

    def given(self, placed: ReadAhead) -> PyTree:
        """Returns a batch on the devices of the present world."""
        return placed.value()

    def close(self) -> None:
        """Does nothing: no worker waits for messages of this one."""

    def ahead(self, batch: PyTree) -> _Placed | None:
        """Returns a batch for the world last seen by the thread that trains, or None if that fails; for any thread."""
        number, receivers = self._receivers.latest
        try:
            return self._split_and_put(batch, number, receivers)
        except Exception:
            return None  # The world may have ended meanwhile. If it has not, `now` raises the error again.

    def now(self, batch: PyTree) -> _Placed:
        """Returns a batch for the present world; for the thread that trains."""
        return self._split_and_put(batch, *self._receivers.now())

    def _split_and_put(self, batch: PyTree, number: int, receivers: Receivers) -> _Placed:
        value = self.form.put(self.split(batch, receivers), receivers)
        note_source(_leaves(value), _Rows(self, batch, number))
        return _Placed(number, value)

    def note(self, batch: PyTree) -> None:
        """Tells of a batch that the loop gets, if it is the first in this world."""
        number, receivers = self._receivers.now()
        if number != self._noted_in:
            self._noted_in = number
            self._note(self.split(batch, receivers), receivers)


class _Placed(NamedTuple):
    """A batch on the devices of the world with this number."""

    number: int
    value: PyTree


class _Rows:
    """The rows that some arrays were made of; `replicax.group.renewal.Source` says what it does."""

    def __init__(self, agreement: WholeBatches, batch: PyTree, number: int):
        self.number = number
        # No reference to the arrays, which refer to this: so batches need no garbage collector to go.
        self._agreement, self._batch = agreement, batch
        self._later: tuple[int, list[Leaf]] | None = None

    def leaves(self) -> Sequence[Leaf]:
        number = current_group().number
        if self._later is None or self._later[0] != number:
            self._later = (number, _leaves(self._agreement.now(self._batch).value))
        return self._later[1]

    def digest(self) -> str:
        return digest(self._batch)


class ReadAhead:
    """A global batch, in memory that nothing else changes, split for the world in which it was read."""

    def __init__(self, agreement: WholeBatches, batch: PyTree):
        self._agreement, self._batch = agreement, batch
        self._placed = agreement.ahead(batch)

    def value(self) -> PyTree:
        """Returns the batch on the devices of the present world."""
        placed = self._placed
        if placed is None or placed.number != current_group().number:
            placed = self._agreement.now(self._batch)
        self._agreement.note(self._batch)
        return placed.value


def _leaves(value: PyTree) -> list[Leaf]:
    leaves: list[Leaf] = jax.tree.leaves(value, is_leaf=is_per_replica)
    return leaves
