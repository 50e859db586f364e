"""Prefetching: one background thread prepares the next items while the consumer works on this one.

The consumer is the thread that trains. While it waits for an item, that is what the process does (`activity.INPUT`).

The two share a `_Queue` and nothing else. In particular the thread has no reference to the consumer's `Prefetcher`, so
an abandoned one is collected and stops its thread. The thread also ends with the data, with an exception (which the
consumer raises after the items before it), and when `close` is called.
"""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import queue
import time
import weakref
from collections.abc import Generator, Iterator
from typing import Generic, TypeVar

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.data.input_times import InputTimes
from replicax.runtime.threads import StoppedAtEnd

_Item = TypeVar("_Item")
_THREAD_NAME = "replicax-prefetch"


def prefetch(
    items: Generator[_Item], size: int, phase: str = activity.INPUT, times: InputTimes | None = None
) -> Generator[_Item] | Prefetcher[_Item]:
    """Returns an iterator over `items` that keeps up to `size` of them ready; the wait for the first is in `phase`."""
    times = times or InputTimes()
    return Prefetcher(items, size, phase, times) if size else _one_by_one(items, phase, times)


def _one_by_one(items: Generator[_Item], phase: str, times: InputTimes) -> Generator[_Item]:
    found: list[_Item] = []
    with contextlib.closing(items):
        while True:
            began = time.monotonic()
            with activity.phase(phase):
                found.extend(itertools.islice(items, 1))
            if not found:
                return
            times.got(began)
            phase = activity.INPUT
            yield found.pop()  # No name for the item: it would keep a batch alive.


class Prefetcher(Iterator[_Item]):
    """An iterator whose items a background thread produces ahead: at once, until `size` of them wait to be taken."""

    def __init__(
        self, items: Generator[_Item], size: int, phase: str = activity.INPUT, times: InputTimes | None = None
    ):
        self._queue: _Queue[_Item] = _Queue(size)
        self._phase, self._times = phase, times or InputTimes()
        # The thread runs outside of every strategy and replica context, whatever surrounds the consumer: its context is
        # empty, also on Pythons whose threads inherit their creator's. Only x64 is taken over: it decides about dtypes.
        run = contextvars.Context().run
        arguments = (_produce, items, self._queue, _x64_is_enabled())
        self._thread = StoppedAtEnd(_THREAD_NAME, run, *arguments, stop=self._queue.close)
        # It does not wait: any thread may do the collecting.
        self._finalizer = weakref.finalize(self, self._queue.close)
        self._finalizer.atexit = False
        self._thread.start()

    def __next__(self) -> _Item:
        began = time.monotonic()
        item = self._queue.get(self._phase)
        self._phase = activity.INPUT
        if not isinstance(item, _EndOfData):
            self._times.got(began)
            return item
        self.close()
        if item.error is None:
            raise StopIteration
        try:
            raise item.error
        finally:
            del item  # Else the exception's traceback would hold this frame, and this frame the exception.

    def close(self, seconds: float = 5.0) -> None:
        """Stops the thread and waits until it is gone, so long if the source is slow. May be called twice."""
        self._finalizer.detach()
        self._thread.stop(seconds)


def _x64_is_enabled() -> bool:
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


class _EndOfData:
    """The last item: the error that ended the data, or None at its regular end."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


class _Queue(Generic[_Item]):
    """A queue between one producer and one consumer; either side can wait on it until it is closed."""

    # Simple queues, which wait without Python's lock. Garbage collection may run `close` at any moment.

    def __init__(self, size: int):
        self._items: queue.SimpleQueue[_Item | _EndOfData] = queue.SimpleQueue()
        self._room: queue.SimpleQueue[None] = queue.SimpleQueue()  # an entry for each item that may still be put
        self._closed = False
        for _ in range(size):
            self._room.put(None)

    def wait_for_room(self) -> bool:
        """Waits until fewer than `size` items are in the queue; returns False once the queue is closed."""
        self._room.get()
        return not self._closed

    def put(self, item: _Item | _EndOfData) -> None:
        """Adds an item without waiting. After the end of the data or a `close` it has no effect."""
        self._items.put(item)
        if self._closed:
            self.close()

    def get(self, phase: str) -> _Item | _EndOfData:
        """Waits for an item, in a phase of the process, and removes it; returns the end if the queue is closed."""
        if self._items.empty():
            with activity.phase(phase):
                item = self._items.get()
        else:
            item = self._items.get()
        if self._closed:
            self.close()  # Whoever waits next shall find the end, too.
            return _EndOfData()
        self._room.put(None)
        return item

    def close(self) -> None:
        """Drops all items and wakes both threads."""
        self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        self._items.put(_EndOfData())
        self._room.put(None)


def _produce(items: Generator[_Item], queue: _Queue[_Item], enable_x64: bool) -> None:
    end = _EndOfData()
    try:
        with jax.enable_x64(enable_x64):
            try:
                while queue.wait_for_room():
                    queue.put(next(items))  # No name for the item: it would keep a batch alive while we wait.
            except StopIteration:
                pass
            finally:
                items.close()
    except BaseException as error:  # Whatever it is, the consumer raises it.
        end = _EndOfData(error)
    queue.put(end)
