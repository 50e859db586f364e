"""Loops over a dataset: what becomes of the batches of a source on their way to the training loop.

The workers agree on the steps in one of two ways. `input_steps.StepByStep`: before the rows of a step are put on
devices, all workers have learnt what each of them has for it. `whole_batches.WholeBatches`, where workers come and go:
none waits for another one, since each reads all of each batch, and splits it for the workers that there are.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator
from typing import NamedTuple, Protocol, Self, TypeVar

import jax

from replicax.data.batch_placement import Form, device_dtype
from replicax.data.batch_split import SplitBatch
from replicax.data.input_steps import InputStep
from replicax.data.input_times import COPYING, InputTimes
from replicax.data.position import Position, RowsRead
from replicax.data.prefetch import Prefetcher, prefetch
from replicax.data.receivers import Receivers
from replicax.errors import BatchError
from replicax.typing import PyTree

_log = logging.getLogger(__name__)

NO_BATCH = "The dataset has no batch, so what its elements look like is unknown."

_Item = TypeVar("_Item")


class Agreement(Protocol):
    """The way in which the workers agree on the steps of a pass."""

    form: Form  # of what the loop gets

    @property
    def receivers(self) -> Receivers:
        """The replicas that the steps are for, as far as any thread knows."""

    def split(self, data: PyTree, receivers: Receivers) -> SplitBatch:
        """Returns the parts of the data of a step that this worker puts on devices."""

    def placed(self, data: PyTree) -> PyTree:
        """Puts the data of a step on the devices; in the thread that prefetches."""

    def given(self, placed: PyTree) -> PyTree:
        """Returns what the loop gets for what `placed` has made, which may have been before others took part."""

    def close(self) -> None:
        """Ends the exchange of messages with the other workers, if there is one."""


class PlacedStep(NamedTuple):
    """The data of a step on the devices."""

    value: PyTree  # what the training loop gets
    rows_read: list[RowsRead]  # with those that were dropped before them
    begins: Position | None  # as `step_agreement.Agreed` has it


class SeenBatches:
    """The knowledge of the batches that a dataset has given, in any pass."""

    def __init__(self, advice: set[str]):
        self.spec: PyTree = None  # shapes and dtypes that one replica gets in the first step; None before any
        self.replicas = 0  # of the first step
        self.advice = advice  # subjects of the warnings that the strategy has given already; more are added

    def note(self, split: SplitBatch, receivers: Receivers) -> None:
        """Notes what the elements of a batch look like, and warns if replicas are idle."""
        self.spec = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], device_dtype(leaf.dtype)), split.parts
        )
        self.replicas = split.replicas
        # Once for each strategy and number of rows: some loops make a dataset of every batch.
        rows = split.replicas * jax.tree.leaves(split.parts)[0].shape[1]
        about = f"first batches of {rows} rows"
        if split.replicas < receivers.num_replicas and about not in self.advice and not receivers.workers.index:
            self.advice.add(about)
            _log.warning(
                "The first batch has %d row(s) and is split over %d of %d replicas, because that many divide it: "
                "exact, but the others are idle. Use a batch size that is a multiple of %d.",
                rows, split.replicas, receivers.num_replicas, receivers.num_replicas,
            )  # fmt: skip


class Pass:
    """A pass over a source that has begun, at a position."""

    #: Once it is opened: the data of the steps.
    steps: Generator[PlacedStep] | Prefetcher[PlacedStep]

    def __init__(
        self, steps: Generator[InputStep], agreement: Agreement, position: Position, shards: int, seen: SeenBatches
    ):
        self.position, self.shards = position, shards  # shards: of the source
        self.leave, self.given = agreement.close, agreement.given
        self._agreement = agreement
        # No generator refers to this object, so that whoever drops it drops them, without a garbage collector.
        self._kept = _kept(steps, agreement, position, seen)

    def peeked(self, *, keep: bool) -> Self | None:
        """Reads the first step; returns the pass with it, or closes the pass if it is not to be kept."""
        kept = peek(self._kept, keep=keep)
        if kept is None:
            self.leave()
            return None
        self._kept = kept
        return self

    def opened(self, form: Form, size: int, phase: str, times: InputTimes) -> Self:
        """Returns the pass with its steps on the devices, up to `size` of them ahead; see `prefetch`."""
        self._agreement.form = form
        self.steps = prefetch(_placed(self._kept, self._agreement, times), size, phase, times)
        return self

    def close(self) -> None:
        """Ends the pass."""
        self._kept.close()
        self.leave()


def _kept(
    steps: Generator[InputStep], agreement: Agreement, position: Position, seen: SeenBatches
) -> Generator[InputStep]:
    """Yields the steps that are not dropped, each with the rows of its pass that were dropped before it."""
    kept, dropped = position.rows, 0
    gave_none = True
    rows_read: list[RowsRead] = []
    begins: Position | None = None

    def check() -> None:
        if kept:
            return
        if dropped:
            raise BatchError(
                f"remainder='drop' left nothing of this dataset: each of its {dropped} batch(es) is too small for "
                f"{agreement.receivers.num_replicas} replicas. Use larger batches or remainder='exact'."
            )
        check_may_be_empty(gave_batches_before=seen.spec is not None)

    with contextlib.closing(steps):
        for data, rows, following in steps:
            if following is not None:
                check()
                kept, dropped, rows_read, begins = 0, 0, [], following
            rows_read += rows
            if data is None:
                dropped += 1
                continue
            kept += 1
            gave_none = False
            if seen.spec is None:
                receivers = agreement.receivers
                seen.note(agreement.split(data, receivers), receivers)
            yield InputStep(data, rows_read, begins)
            rows_read, begins = [], None
    check()
    if gave_none and kept and agreement.receivers.workers.index == 0:
        _log.warning(
            "The position that was restored is the end of a pass, so this loop gets no batch: the next loop reads the "
            "next pass. Keep the number of the epoch in the checkpoint, too, lest an epoch be left out."
        )


def _placed(steps: Generator[InputStep], agreement: Agreement, times: InputTimes) -> Generator[PlacedStep]:
    with contextlib.closing(steps):
        for data, rows_read, begins in times.batches(steps):
            # No name for it: it would keep a batch alive while it waits in the queue.
            yield PlacedStep(times.called(COPYING, agreement.placed, data), rows_read, begins)


def peek(items: Generator[_Item], *, keep: bool) -> Generator[_Item] | None:
    """Runs a pass up to its first item; closes it or, with `keep`, returns it with that item."""
    first = next(items, None)
    if first is None:
        raise BatchError(NO_BATCH)
    if keep:  # The source cannot yield the item again.
        return _resume(first, items)
    items.close()
    return None


def check_may_be_empty(*, gave_batches_before: bool) -> None:
    """Checks that a pass without a batch is not a mistake."""
    if gave_batches_before:
        raise BatchError(
            "The dataset gave batches before, but none in this pass: its source probably returns the same used-up "
            "iterator again. Give something that starts anew each time, such as a function that makes an iterator."
        )


def _resume(first: _Item, rest: Generator[_Item]) -> Generator[_Item]:
    with contextlib.closing(rest):
        yield first
        yield from rest
