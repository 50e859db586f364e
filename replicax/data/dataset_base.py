"""The base of both kinds of distributed datasets: passes, placement, prefetching, position."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import NamedTuple

import jax
from jax.sharding import Mesh

from replicax.data.auto_shard import DatasetReading
from replicax.data.batch_placement import device_dtype, place, place_rows
from replicax.data.batch_split import SplitBatch
from replicax.data.first_batch import check_may_be_empty, peek
from replicax.data.input_options import InputOptions
from replicax.data.input_steps import InputStep, InputStepMaker
from replicax.data.iterator import OpenedPass, PassIterator, PlacedStep, check_outside_of_programs
from replicax.data.position import Position, RowsRead
from replicax.data.prefetch import prefetch
from replicax.data.shard_report import report
from replicax.data.worker_channel import InputWorkers, WorkerChannel
from replicax.errors import ArgumentError, BatchError
from replicax.typing import PyTree, PyTreeFunction

_log = logging.getLogger(__name__)


class _BegunPass(NamedTuple):
    """A pass over the source that has begun.

    Attributes:
        steps: Its steps without those that are dropped; `rows_read` of a step includes the rows dropped before it.
        position: Where it begins.
        maker: Makes the steps.
        channel: To the other workers.
    """

    steps: Generator[InputStep]
    position: Position
    maker: InputStepMaker
    channel: WorkerChannel | None

    def close(self) -> None:
        """Ends the pass."""
        self.steps.close()
        if self.channel is not None:
            self.channel.close()


class DistributedDatasetBase(Iterable[PyTree], abc.ABC):
    """The base of both kinds of distributed datasets: passes, placement, prefetching, position, `element_spec`."""

    _keeps_peeked_pass: bool
    _reading: DatasetReading

    def __init__(
        self,
        num_replicas: int,
        mesh_for: Callable[[int], Mesh],
        options: InputOptions | None,
        workers: InputWorkers | None,
        advice: set[str] | None = None,
    ):
        if options is not None and not isinstance(options, InputOptions):
            raise ArgumentError(f"`options` is an rx.InputOptions, got {options!r}.")
        self._num_replicas = num_replicas
        self._mesh_for = mesh_for
        self._options = options or InputOptions()
        self._workers = workers or InputWorkers(0, ("worker:0",), (num_replicas,))
        self._advice = set() if advice is None else advice
        self._spec: PyTree = None
        self._passes = 0
        self._peeked: _BegunPass | None = None
        self._next_position = Position()
        self._position = self._next_position  # of the loop in the latest pass

    # Passes.

    def __iter__(self) -> PassIterator:
        return self._iterator(self._placed)

    def global_batches(self) -> PassIterator:
        """Begins a pass whose steps are global rows: for each leaf an array that is sharded over the replicas.

        A batch that does not divide evenly comes as NumPy arrays, with all rows on every worker.
        """
        return self._iterator(self._placed_as_rows, everywhere=True)

    def _iterator(self, placed: Callable[[SplitBatch], PyTree], everywhere: bool = False) -> PassIterator:
        def open_pass(position: Position) -> OpenedPass:
            self._check_can_continue()
            self._forget_peeked()
            self._next_position = position
            return self._opened(placed, everywhere)

        check_outside_of_programs("A distributed dataset was iterated over")
        self._passes += 1
        opened = self._opened(placed, everywhere)
        return PassIterator(open_pass, opened, is_first=self._passes == 1, spec=lambda: self._spec)

    def _opened(self, placed: Callable[[SplitBatch], PyTree], everywhere: bool) -> OpenedPass:
        """Opens the next pass, or continues the one that was begun to look at its first step."""
        begun, self._peeked = self._peeked or self._begin(), None
        begun.maker.everywhere = everywhere
        self._position = begun.position
        self._next_position = Position(begun.position.number + 1)
        steps = prefetch(_placed_steps(begun.steps, placed), self._options.prefetch)
        close = None if begun.channel is None else begun.channel.close
        return OpenedPass(steps, self._reading.num_shards(begun.position), begun.position, close)

    def _begin(self) -> _BegunPass:
        position, channel = self._next_position.at_start(), None
        if self._workers.count > 1:
            channel = WorkerChannel(self._workers, self._options.worker_timeout)
        maker = InputStepMaker(self._workers, channel, self._options)
        return _BegunPass(
            self._without_dropped(self._reading.steps(maker, channel, position), position), position, maker, channel
        )

    def _without_dropped(self, steps: Generator[InputStep], position: Position) -> Generator[InputStep]:
        """Yields the steps that are not dropped."""
        kept, dropped = 0, 0
        rows_read: list[RowsRead] = []
        with contextlib.closing(steps):
            for split, rows in steps:
                rows_read += rows
                if split is None:
                    dropped += 1
                    continue
                kept += 1
                if self._spec is None:
                    self._spec = _component_spec(split)
                    _warn_of_idle_replicas(split, self._num_replicas, self._advice)
                yield InputStep(split, rows_read)
                rows_read = []
        if not kept and not position.rows:
            self._check_empty_pass(dropped)

    def _check_empty_pass(self, dropped: int) -> None:
        if dropped:
            raise BatchError(
                f"remainder='drop' left nothing of this dataset: each of its {dropped} batch(es) is too small for "
                f"{self._num_replicas} replicas. Use larger batches or remainder='exact'."
            )
        check_may_be_empty(gave_batches_before=self._spec is not None)

    def _placed(self, split: SplitBatch) -> PyTree:
        mesh = self._mesh_for(split.replicas)
        return place(split.parts, mesh, bare=self._num_replicas == 1, first=split.first)

    def _placed_as_rows(self, split: SplitBatch) -> PyTree:
        if split.replicas == self._num_replicas:
            return place_rows(split.parts, self._mesh_for(split.replicas), first=split.first)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), split.parts)

    # Its properties.

    @property
    def num_workers(self) -> int:
        """Number of processes that this dataset feeds."""
        return self._workers.count

    def belongs_to(self, mesh_for: Callable[[int], Mesh]) -> bool:
        """Returns whether this dataset was made for the meshes of `mesh_for`."""
        return self._mesh_for == mesh_for

    def __bool__(self) -> bool:
        return True  # Otherwise Python would call `__len__`, and not every dataset knows its length.

    def reduce(self, initial_state: PyTree, reduce_func: PyTreeFunction) -> PyTree:
        """Returns the state after a pass over the dataset.

        Args:
            initial_state: The state before the first batch.
            reduce_func: Called as `reduce_func(state, batch)` for each batch, in order; returns the next state.
        """
        state = initial_state
        for batch in self:
            state = reduce_func(state, batch)
        return state

    @property
    def element_spec(self) -> PyTree:
        """The shapes and dtypes that one replica gets in the first step: a pytree of `jax.ShapeDtypeStruct`.

        Before the first pass the source is opened to look at its first batch. No data is lost: an iterator's first
        batch is kept for the coming pass; other sources start anew. With several workers, all of them must ask.

        Raises:
            BatchError: There is no batch.
        """
        if self._spec is None:
            begun = self._begin()
            steps = peek(begun.steps, keep=self._keeps_peeked_pass)
            if steps is not None:
                self._peeked = begun._replace(steps=steps)
            else:
                begun.close()
        return self._spec

    def shard_report(self) -> str:
        """Runs through the source and returns a line for each worker; all workers must call it together."""
        self._check_can_continue()
        channel = WorkerChannel(self._workers, self._options.worker_timeout) if self._workers.count > 1 else None
        summary, source = self._reading.summarize(InputStepMaker(self._workers, channel, self._options))
        return report(summary, source, self._workers, channel)

    # Position.

    def get_state(self) -> dict[str, object]:
        """Returns how far the training loop is in its latest pass: a small dict that JSON can hold.

        It counts the rows that the loop has got, not those that are only prefetched. It depends neither on the number
        of replicas nor, unless each worker's data is its own, on the number of workers.

        Raises:
            ArgumentError: The dataset is an iterator, which cannot begin anew.
        """
        self._check_can_continue()
        return self._position.state()

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Makes the next pass begin after the rows that the loop had got when `get_state` returned `state`.

        The source must yield the same rows in the same order as in that pass. They are read and skipped; arrays, and
        files of which all rows had been used, are not read at all.

        Raises:
            ArgumentError: `state` is not such a state, or the dataset is an iterator, which cannot begin anew.
        """
        self._check_can_continue()
        position = Position.of(state)
        self._forget_peeked()
        self._next_position = self._position = position

    def _forget_peeked(self) -> None:
        begun, self._peeked = self._peeked, None
        if begun is not None:
            begun.close()

    def _check_can_continue(self) -> None:
        """Checks that a pass can begin in the middle of the source."""


def _placed_steps(steps: Generator[InputStep], placed: Callable[[SplitBatch], PyTree]) -> Generator[PlacedStep]:
    with contextlib.closing(steps):
        for split, rows_read in steps:
            assert split is not None
            yield PlacedStep(placed(split), rows_read)


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
