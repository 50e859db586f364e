"""One pass over a distributed dataset, as a training loop sees it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Iterator, Mapping

import replicax.context as context
from replicax.contracts.group import current_group
from replicax.data.optional_batch import Optional
from replicax.data.passes import NO_BATCH, Pass
from replicax.data.position import Position
from replicax.data.prefetch import Prefetcher
from replicax.errors import BatchError, ContextError
from replicax.typing import PyTree


class DistributedIterator(Iterator[PyTree]):
    """One pass over a distributed dataset; made by `iter(dataset)`.

    It stops its background thread at the end of the data, when it is closed, and when it is garbage-collected. As a
    context manager it closes itself at the end of the block.

    Args:
        steps: The data of the steps.
        spec: Returns the dataset's `element_spec`; None as long as no batch has been seen.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> iterator = iter(strategy.distribute_dataset(np.arange(4), batch_size=4))
        >>> strategy.local_results(next(iterator))
        (Array([0, 1], dtype=int32), Array([2, 3], dtype=int32))
        >>> next(iterator, "the pass is over")
        'the pass is over'
    """

    def __init__(
        self,
        steps: Generator[PyTree] | Prefetcher[PyTree],
        spec: Callable[[], PyTree] = lambda: None,
    ):
        self._steps, self._spec = steps, spec
        self._ahead: list[PyTree] = []  # what was read to look at it, and is still to be returned

    def __next__(self) -> PyTree:
        """Returns the data of the next step."""
        check_outside_of_programs("next() of a distributed iterator was called")
        return self._ahead.pop() if self._ahead else next(self._steps)

    def get_next(self) -> PyTree:
        """Returns the data of the next step, as `next` does; at the end it raises StopIteration."""
        return next(self)

    def get_next_as_optional(self) -> Optional:
        """Returns the data of the next step as an `Optional`, which has no value at the end of the data."""
        try:
            return Optional(next(self), self._spec())
        except StopIteration:
            return Optional.empty(self._spec())

    @property
    def element_spec(self) -> PyTree:
        """The shapes and dtypes that one replica gets, as the dataset's `element_spec`; no batch is lost by asking.

        Raises:
            BatchError: There is no batch.
        """
        if self._spec() is None and not self._ahead:
            check_outside_of_programs("element_spec of a distributed iterator was asked for")
            try:
                self._ahead.append(next(self._steps))
            except StopIteration:
                raise BatchError(NO_BATCH) from None
        return self._spec()

    def close(self) -> None:
        """Ends the pass early and stops the background thread. May be called twice."""
        self._ahead.clear()
        self._steps.close()

    def __enter__(self) -> DistributedIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PassIterator(DistributedIterator):
    """One pass over a distributed dataset, which counts its position in the source."""

    #: A loop that asks this for a batch begins a step: there others may join (`checkpoint/joining.py`).
    begins_steps = True

    def __init__(
        self,
        open_pass: Callable[[Position], Pass],
        opened: Pass,
        spec: Callable[[], PyTree],
        source: object,  # the dataset
        follow: Callable[[Position], None],  # called with the position when the loop has come to another pass
    ):
        self._open_pass, self._spec, self._source, self._follow = open_pass, spec, source, follow
        self._begin(opened)

    def _begin(self, opened: Pass) -> None:
        super().__init__(opened.steps, self._spec)
        self._given = opened.given
        self._shards, self._position = opened.shards, opened.position
        # In the thread of the program, where all workers do the same in the same order.
        self._leave = weakref.finalize(self, opened.leave)

    def __next__(self) -> PyTree:
        check_outside_of_programs("next() of a distributed iterator was called")
        current_group().boundary(self, self._source)  # Between two batches, workers that have come are taken in.
        try:
            value, rows_read, begins = self._ahead.pop() if self._ahead else next(self._steps)
        except StopIteration:
            self._leave()
            self._position.finish()
            raise
        except BaseException:
            self._leave()
            raise
        if begins is not None:
            self._position.go_on(begins)
            self._follow(self._position)
        self._position.add(self._shards, rows_read)
        return self._given(value)

    def close(self) -> None:
        self._leave()
        super().close()

    def get_state(self) -> dict[str, object]:
        """Returns the position as JSON can hold it: which rows the loop has got (not those only prefetched)."""
        return self._position.state()

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Continues at a position that `get_state` has returned, here or in a job with other workers or replicas."""
        position = Position.of(state)
        self.close()
        self._begin(self._open_pass(position))


def check_outside_of_programs(what: str) -> None:
    """Checks that no step or compiled function is being traced, where no batch can be read."""
    here = context.current()
    if here.replica is not None and here.strategy is not None:
        raise ContextError(
            f"{what} inside strategy.run. Take the batch outside and pass it on: "
            "`strategy.run(step, args=(next(iterator),))`."
        )
    if here.frame is not None and not context.runs_eagerly():
        raise ContextError(
            f"{what} inside a compiled function, whose Python runs once, when it is traced: each batch would become a "
            "constant of the program. Loop outside, and compile the step; strategy.run does that by itself, so the "
            "function with the loop needs no @rx.function:\n"
            "    for batch in dataset:\n"
            "        loss = strategy.reduce('sum', strategy.run(step, args=(batch,)), axis=None)\n"
            "An @rx.function takes one batch as an argument; for several steps in one program, pass a list of batches."
        )
