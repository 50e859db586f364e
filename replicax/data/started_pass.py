"""Passes that have begun: their steps before they are put on devices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import NamedTuple, Protocol, Self

import jax

from replicax.data.batch_placement import owned_copy, place, place_rows
from replicax.data.batch_split import SplitBatch
from replicax.data.fed_replicas import Receivers, ReceiversByWorld
from replicax.data.first_batch import peek
from replicax.data.input_options import InputOptions
from replicax.data.input_steps import InputStep, InputStepMaker
from replicax.data.iterator import OpenedPass, PlacedStep
from replicax.data.position import Position
from replicax.data.prefetch import prefetch
from replicax.data.whole_batches import ReadAhead, Splitter, WholeBatch
from replicax.data.worker_channel import WorkerChannel
from replicax.typing import PyTree


class Form(NamedTuple):
    """The form in which a loop gets the batches."""

    put: Callable[[SplitBatch, Receivers], PyTree]  # puts the parts of a batch on the devices of its receivers
    everywhere: bool  # whether every worker gets all rows of a step in which not all replicas take part


def _as_values(split: SplitBatch, receivers: Receivers) -> PyTree:
    return place(split.parts, receivers.mesh_for(split.replicas), bare=receivers.num_replicas == 1, first=split.first)


def _as_rows(split: SplitBatch, receivers: Receivers) -> PyTree:
    if split.replicas == receivers.num_replicas:
        return place_rows(split.parts, receivers.mesh_for(split.replicas), first=split.first)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), split.parts)


#: A `PerReplica` for each array; with one replica, the array.
VALUES = Form(_as_values, everywhere=False)
#: Arrays of global rows; in steps in which not all replicas take part, NumPy arrays.
ROWS = Form(_as_rows, everywhere=True)


class BegunPass(Protocol):
    """A pass over the source that has begun, at a position."""

    @property
    def position(self) -> Position: ...

    def peeked(self, *, keep: bool) -> Self | None:
        """Reads the first step; returns the pass with it, or closes the pass if it is not to be kept."""

    def opened(self, form: Form, shards: int, size: int) -> OpenedPass:
        """Returns the pass with its steps on the devices, up to `size` of them ahead."""

    def close(self) -> None:
        """Ends the pass."""


class BegunSteps(NamedTuple):
    """A pass whose workers agree on each step before it is put on devices."""

    steps: Generator[InputStep]  # without those that are dropped; a step includes the rows dropped before it
    position: Position
    maker: InputStepMaker
    channel: WorkerChannel | None
    receivers: Receivers

    def peeked(self, *, keep: bool) -> Self | None:
        """Reads the first step; see `BegunPass`."""
        steps = peek(self.steps, keep=keep)
        if steps is not None:
            return self._replace(steps=steps)
        self.close()
        return None

    def opened(self, form: Form, shards: int, size: int) -> OpenedPass:
        """Returns the pass with its steps on the devices."""
        self.maker.everywhere = form.everywhere
        close = None if self.channel is None else self.channel.close
        return OpenedPass(prefetch(self._placed(form), size), shards, self.position, close)

    def _placed(self, form: Form) -> Generator[PlacedStep]:
        with contextlib.closing(self.steps):
            for split, rows_read in self.steps:
                assert split is not None
                yield PlacedStep(form.put(split, self.receivers), rows_read)

    def close(self) -> None:
        """Ends the pass."""
        self.steps.close()
        if self.channel is not None:
            self.channel.close()


class BegunWhole(NamedTuple):
    """A pass of which each worker reads all, where workers come and go."""

    batches: Generator[WholeBatch]
    position: Position
    receivers: ReceiversByWorld
    options: InputOptions
    note: Callable[[SplitBatch, Receivers], None]  # called with the first batch that the loop gets in each world

    def peeked(self, *, keep: bool) -> Self | None:
        """Reads the first batch; see `BegunPass`."""
        batches = peek(self.batches, keep=keep)
        return None if batches is None else self._replace(batches=batches)

    def opened(self, form: Form, shards: int, size: int) -> OpenedPass:
        """Returns the pass with its steps on the devices of the world in which they are read."""
        splitter = Splitter(self.receivers, self.options, *form, self.note)
        steps = prefetch(_read_ahead(self.batches, splitter), size)
        return OpenedPass(steps, shards, self.position, None)

    def close(self) -> None:
        """Ends the pass."""
        self.batches.close()


def _read_ahead(batches: Generator[WholeBatch], splitter: Splitter) -> Generator[PlacedStep]:
    with contextlib.closing(batches):
        for batch, rows_read, lasts in batches:
            kept = batch if lasts else jax.tree.map(owned_copy, batch)
            yield PlacedStep(ReadAhead(splitter, kept), rows_read)
