"""Looking at the first batch of a pass before the pass, and passes without any batch."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TypeVar

from replicax.errors import BatchError

NO_BATCH = "The dataset has no batch, so what its elements look like is unknown."

_Item = TypeVar("_Item")


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
