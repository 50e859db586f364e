"""The index of the worker that runs a user's function, as ambient state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_index: ContextVar[int | None] = ContextVar("replicax_worker_index", default=None)


def worker_index() -> int | None:
    """Returns the index of the worker that is calling a user's function; None on the coordinator."""
    return _index.get()


@contextlib.contextmanager
def on_worker(index: int) -> Iterator[None]:
    """Makes `worker_index` return `index` while the block runs."""
    token = _index.set(index)
    try:
        yield
    finally:
        _index.reset(token)
