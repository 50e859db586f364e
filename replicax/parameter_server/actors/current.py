"""Which worker runs the code: ambient for functions that workers call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_index: ContextVar[int | None] = ContextVar("replicax_worker_index", default=None)


def worker_index() -> int | None:
    """Returns the number of the worker that is calling a user's function; None elsewhere."""
    return _index.get()


@contextlib.contextmanager
def on_worker(index: int) -> Iterator[None]:
    """Lets `worker_index` answer `index`, while a worker calls a user's function."""
    token = _index.set(index)
    try:
        yield
    finally:
        _index.reset(token)
