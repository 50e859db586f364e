"""A distributed dataset learns of its batches as they come: of what their elements are like, and whether any come."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator

import jax

from replicax.data.batch_placement import device_dtype
from replicax.data.batch_split import SplitBatch
from replicax.data.fed_replicas import Receivers, ReceiversByWorld
from replicax.data.first_batch import check_may_be_empty
from replicax.data.input_options import InputOptions
from replicax.data.input_steps import InputStep
from replicax.data.position import Position, RowsRead
from replicax.data.whole_batches import WholeBatch, whole_split
from replicax.errors import BatchError
from replicax.typing import PyTree

_log = logging.getLogger(__name__)


class SeenBatches:
    """The knowledge of the batches that a dataset has given, in any pass."""

    def __init__(self, advice: set[str]):
        self.spec: PyTree = None  # shapes and dtypes that one replica gets in the first step; None before any
        self.advice = advice  # subjects of the warnings that the strategy has given already; more are added

    def note(self, split: SplitBatch, receivers: Receivers) -> None:
        """Notes what the elements of a batch look like, and warns if replicas are idle."""
        self.spec = _component_spec(split)
        _warn_of_idle_replicas(split, receivers.num_replicas, self.advice)

    def whole(
        self,
        batches: Generator[WholeBatch],
        position: Position,
        receivers: ReceiversByWorld,
        options: InputOptions,
    ) -> Generator[WholeBatch]:
        """Yields the batches of a pass of which each worker reads all; in any thread."""
        is_empty = not position.rows
        with contextlib.closing(batches):
            for batch in batches:
                is_empty = False
                if self.spec is None:
                    _, latest = receivers.latest
                    self.note(whole_split(batch.batch, latest, options), latest)
                yield batch
        if is_empty:
            check_may_be_empty(gave_batches_before=self.spec is not None)

    def without_dropped(
        self, steps: Generator[InputStep], position: Position, receivers: Receivers
    ) -> Generator[InputStep]:
        """Yields the steps of a pass that are not dropped, each with the rows that were dropped before it."""
        kept, dropped = 0, 0
        rows_read: list[RowsRead] = []
        with contextlib.closing(steps):
            for split, rows in steps:
                rows_read += rows
                if split is None:
                    dropped += 1
                    continue
                kept += 1
                if self.spec is None:
                    self.note(split, receivers)
                yield InputStep(split, rows_read)
                rows_read = []
        if kept or position.rows:
            return
        if dropped:
            raise BatchError(
                f"remainder='drop' left nothing of this dataset: each of its {dropped} batch(es) is too small for "
                f"{receivers.num_replicas} replicas. Use larger batches or remainder='exact'."
            )
        check_may_be_empty(gave_batches_before=self.spec is not None)


def _component_spec(split: SplitBatch) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], device_dtype(leaf.dtype)), split.parts)


def _warn_of_idle_replicas(first: SplitBatch, num_replicas: int, advice: set[str]) -> None:
    """Warns once for each strategy and number of rows: some loops make a dataset of every batch."""
    rows = first.replicas * jax.tree.leaves(first.parts)[0].shape[1]
    about = f"first batches of {rows} rows"
    if first.replicas < num_replicas and about not in advice:
        advice.add(about)
        _log.warning(
            "The first batch has %d row(s) and is split over %d of %d replicas, because that many divide it: exact, "
            "but the others are idle. Use a batch size that is a multiple of %d.",
            rows, first.replicas, num_replicas, num_replicas,
        )  # fmt: skip
