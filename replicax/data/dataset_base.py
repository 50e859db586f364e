"""The base of both kinds of distributed datasets: passes, placement, prefetching, position."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping

import jax
import numpy as np
from jax.sharding import Mesh

import replicax.runtime.activity as activity
from replicax.contracts.group import current_group
from replicax.data.auto_shard import DatasetReading
from replicax.data.batch_placement import ROWS, VALUES, Form
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.input_steps import StepByStep
from replicax.data.input_times import InputTimes
from replicax.data.iterator import PassIterator, check_outside_of_programs
from replicax.data.passes import Agreement, Pass, SeenBatches
from replicax.data.position import Position
from replicax.data.receivers import InputWorkers, Receivers, ReceiversByWorld
from replicax.data.shard_report import ShardSummary, report, report_of_world, summarized
from replicax.data.whole_batches import WholeBatches
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import ArgumentError, ElasticError
from replicax.typing import PyTree, PyTreeFunction


class DistributedDatasetBase(Iterable[PyTree], abc.ABC):
    """The base of both kinds of distributed datasets: passes, placement, prefetching, position, `element_spec`."""

    #: A loop that asks for a batch of this begins a step, as with its iterators.
    begins_steps = True

    _keeps_peeked_pass: bool
    _reading: DatasetReading

    def __init__(
        self,
        receivers: Receivers,
        options: InputOptions | None,
        anew: Callable[[], Receivers] | None = None,
        advice: set[str] | None = None,
    ):
        if options is not None and not isinstance(options, InputOptions):
            raise ArgumentError(f"`options` is an rx.InputOptions, got {options!r}.")
        self._receivers = ReceiversByWorld(receivers, anew)
        self._options = InputOptions() if options is None else options
        self._seen = SeenBatches(set() if advice is None else advice)
        self._passes = 0
        self._times = InputTimes()
        self._peeked: Pass | None = None
        self._next_position = Position()
        self._position = self._next_position  # of the loop in the latest pass

    @property
    def _fed(self) -> Receivers:
        return self._receivers.now()[1]

    def _readers(self) -> InputWorkers:
        """Returns the workers among whom the source is divided: where they come and go, each reads all of it."""
        if not current_group().may_change:
            return self._fed.workers
        if self._options.auto_shard_policy is AutoShardPolicy.OFF:
            raise ElasticError(
                "auto_shard_policy='off' means that each worker has data of its own, which is lost with the worker. "
                "Where workers come and go, any of them must be able to read any row: give all workers the same "
                "source, with auto_shard_policy='auto'."
            )
        return InputWorkers(0, ("every worker",), (self._fed.num_replicas,))

    # Passes.

    def __iter__(self) -> PassIterator:
        return self._iterator(VALUES)

    def global_batches(self) -> PassIterator:
        """Begins a pass whose steps are global rows: for each leaf an array that is sharded over the replicas.

        A batch that does not divide evenly comes as NumPy arrays, with all rows on every worker.
        """
        return self._iterator(ROWS)

    def _iterator(self, form: Form) -> PassIterator:
        def open_pass(position: Position) -> Pass:
            self._check_can_continue()
            self._forget_peeked()
            self._next_position = position
            return self._opened(form, activity.FIRST_BATCH)

        check_outside_of_programs("A distributed dataset was iterated over")
        self._passes += 1
        opened = self._opened(form, activity.FIRST_BATCH if self._passes == 1 else activity.INPUT)
        return PassIterator(open_pass, opened, lambda: self._seen.spec, self, self._follow)

    def _opened(self, form: Form, phase: str) -> Pass:
        """Opens the next pass, or continues the one that was begun to look at its first step."""
        begun, self._peeked = self._peeked or self._begin(), None
        self._follow(begun.position)
        self._times = self._reading.times or InputTimes()
        return begun.opened(form, self._options.prefetch, phase, self._times)

    def _follow(self, position: Position) -> None:
        """Takes the position of a loop in its latest pass for that of this dataset."""
        self._position, self._next_position = position, Position(position.number + 1)

    def _begin(self) -> Pass:
        position, receivers = self._next_position.at_start(), self._fed
        agreement: Agreement
        if current_group().may_change:
            agreement = WholeBatches(self._receivers, self._options, self._seen.note)
            steps = self._reading.whole(position, receivers.num_replicas)
        else:
            agreement = self._step_by_step(receivers)
            steps = self._reading.steps(agreement, position)
        return Pass(steps, agreement, position, self._reading.num_shards(position), self._seen)

    def _step_by_step(self, receivers: Receivers) -> StepByStep:
        is_alone = receivers.workers.count == 1
        channel = None if is_alone else WorkerChannel(receivers.workers, self._options.worker_timeout)
        return StepByStep(receivers, channel, self._options)

    # Its properties.

    @property
    def num_workers(self) -> int:
        """Number of processes that this dataset feeds."""
        return self._fed.workers.count

    @property
    def bad_rows(self) -> int:
        """How many rows of the latest pass no worker could read; they were left out (`rows.batch(on_error="skip")`)."""
        return self._position.bad

    def input_times(self) -> str:
        """Returns whether the loop waited for its batches in the latest pass, and what these were waiting for."""
        return str(self._times)

    def belongs_to(self, mesh_for: Callable[[int], Mesh]) -> bool:
        """Returns whether this dataset was made for the meshes of `mesh_for`."""
        return self._fed.mesh_for == mesh_for

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
        if self._seen.spec is None:
            self._peeked = self._begin().peeked(keep=self._keeps_peeked_pass)
        return self._seen.spec

    def first_rows(self) -> PyTree:
        """Returns zeros in the shapes and dtypes of the first batch, of all its rows; loses no batch."""
        spec = self.element_spec
        return jax.tree.map(
            lambda leaf: np.zeros((self._seen.replicas * leaf.shape[0], *leaf.shape[1:]), leaf.dtype), spec
        )

    def shard_report(self) -> str:
        """Runs through the source and returns a line for each worker; all workers must call it together."""
        self._check_can_continue()
        if current_group().may_change:
            return report_of_world(self._summary)
        agreement = self._step_by_step(self._fed)
        summary, source = self._reading.summarize(agreement)
        return report(summary, source, self._fed.workers, agreement.channel)

    def _summary(self) -> tuple[ShardSummary, np.ndarray]:
        """Returns what this worker uses of the rows in the present world, and digests of all of them."""
        receivers = self._fed
        agreement = WholeBatches(self._receivers, self._options, self._seen.note)
        steps = self._reading.whole(Position(), receivers.num_replicas)
        return summarized((batch for batch, *_ in steps), lambda batch: agreement.split(batch, receivers))

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

    @property
    def next_pass(self) -> int:
        """The number of the pass that the next loop begins or goes on with."""
        return self._next_position.number

    @property
    def is_unread(self) -> bool:
        """Whether no loop has begun, and no position was restored."""
        position = self._next_position
        return not (self._passes or position.number or position.rows)

    def begin_at(self, number: int) -> None:
        """Makes the next loop begin with another pass, in whose order the rows are shuffled then."""
        self.set_state(Position(number).state())

    def _forget_peeked(self) -> None:
        begun, self._peeked = self._peeked, None
        if begun is not None:
            begun.close()

    @property
    def can_continue(self) -> bool:
        """Whether a pass can begin in the middle: the source gives its rows again."""
        return True

    def _check_can_continue(self) -> None:
        """Checks that a pass can begin in the middle of the source."""
