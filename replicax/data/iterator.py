"""One pass over a distributed dataset, as a training loop sees it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import replicax.context as context
from replicax.data.prefetch import Prefetcher
from replicax.errors import ContextError


class DistributedIterator(Iterator[Any]):
    """One pass over a distributed dataset; made by `iter(dataset)`.

    It stops its background thread at the end of the data, when it is closed, and when nobody holds it any more. As a
    context manager it closes itself at the end of the block.
    """

    def __init__(self, steps: Generator[Any] | Prefetcher):
        self._steps = steps

    def __next__(self) -> Any:
        """Returns the data of the next step.

        Raises:
            ContextError: The call comes from inside `strategy.run` or a compiled function.
            BatchError: The source yielded something that is not a batch.
        """
        _check_outside_of_programs()
        return next(self._steps)

    def get_next(self) -> Any:
        """Returns the data of the next step, as `next` does; at the end it raises StopIteration."""
        return next(self)

    def close(self) -> None:
        """Ends the pass early and stops the background thread. May be called twice."""
        self._steps.close()

    def __enter__(self) -> DistributedIterator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_outside_of_programs() -> None:
    here = context.current()
    if here.replica is not None and here.strategy is not None:
        raise ContextError(
            "next() of a distributed iterator was called inside strategy.run. Take the batch outside and pass it on: "
            "`strategy.run(step, args=(next(iterator),))`."
        )
    if here.frame is not None and not context.runs_eagerly():
        raise ContextError(
            "next() of a distributed iterator was called inside a compiled function, where this one batch would become "
            "a constant of the program. Take the batch outside and pass it to the function as an argument."
        )
