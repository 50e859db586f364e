"""Prefetching: one background thread prepares the next items while the consumer works on this one.

The two share a `_Channel` and nothing else. In particular the thread does not know the consumer's `Prefetcher`, so an
abandoned one is collected and stops its thread.
"""

from __future__ import annotations

import collections
import contextvars
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import jax
import numpy as np

_THREAD_NAME = "replicax-prefetch"
_SECONDS_TO_STOP = 5.0


def prefetch(items: Generator[Any], size: int) -> Generator[Any] | Prefetcher:
    """Returns an iterator over `items` that keeps up to `size` of them ready; 0 leaves `items` as it is."""
    return Prefetcher(items, size) if size else items


class Prefetcher(Iterator[Any]):
    """An iterator whose items are produced ahead by a background thread.

    The thread starts at once, runs `items` until `size` items wait to be taken, and goes on whenever one has been. It
    ends with the data, with an exception (raised in the consumer after the items before it), when `close` is called,
    and when the prefetcher is dropped or collected.

    The thread runs outside of every strategy and replica context, whatever surrounds the consumer: contexts belong to
    threads. Of JAX's settings for the current thread it takes over whether x64 is on, which decides about dtypes.

    Args:
        items: What to run; closed in the thread at the end.
        size: How many items to keep ready, at least 1.
    """

    def __init__(self, items: Generator[Any], size: int):
        self._channel = _Channel(size)
        run = contextvars.Context().run  # Empty, also on Pythons whose threads inherit their creator's context.
        arguments = (_produce, items, self._channel, _x64_is_enabled())
        self._thread = threading.Thread(target=run, args=arguments, name=_THREAD_NAME, daemon=True)
        self._finalizer = weakref.finalize(self, _abandon, self._channel, self._thread)
        self._thread.start()

    def __next__(self) -> Any:
        item = self._channel.get()
        if not isinstance(item, _End):
            return item
        self.close()
        if item.error is None:
            raise StopIteration
        try:
            raise item.error
        finally:
            del item  # Else the exception's traceback would hold this frame, and this frame the exception.

    def close(self) -> None:
        """Stops the thread and waits until it is gone, up to 5 seconds if the source is slow. May be called twice."""
        self._finalizer.detach()
        self._channel.close()
        if self._thread is not threading.current_thread():
            self._thread.join(_SECONDS_TO_STOP)


def _x64_is_enabled() -> bool:
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def _abandon(channel: _Channel, thread: threading.Thread) -> None:
    """Runs when a prefetcher is collected (then it must not wait: any thread may be the one that collects) or at exit.

    A thread that is still in the middle of a transfer when the interpreter goes down would abort the process.
    """
    channel.close()
    if not threading.main_thread().is_alive():  # The interpreter is exiting.
        thread.join(_SECONDS_TO_STOP)


class _End:
    """The last item: what ended the data, None for nothing wrong."""

    def __init__(self, error: BaseException | None = None):
        self.error = error


class _Channel:
    """A queue between one producer and one consumer that either side can wait on, until it is closed."""

    def __init__(self, size: int):
        self._size = size
        self._items: collections.deque[Any] = collections.deque()
        self._closed = False
        # The lock must be re-entrant, as it is by default: garbage collection may run `close` while we hold it.
        self._changed = threading.Condition()

    def wait_for_room(self) -> bool:
        """Waits until fewer than `size` items are in the queue; returns False once the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._items) < self._size)
            return not self._closed

    def put(self, item: Any) -> None:
        """Adds an item; never waits. After the end of the data or a `close` it has no effect."""
        with self._changed:
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()

    def get(self) -> Any:
        """Waits for an item and removes it; a closed queue gives the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._items)
            if self._closed:
                return _End()
            self._changed.notify_all()
            return self._items.popleft()

    def close(self) -> None:
        """Drops what is in the queue and wakes everyone who waits."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


def _produce(items: Generator[Any], channel: _Channel, enable_x64: bool) -> None:
    end = _End()
    try:
        with jax.enable_x64(enable_x64):
            try:
                while channel.wait_for_room():
                    channel.put(next(items))  # No name for the item: it would keep a batch alive while we wait.
            except StopIteration:
                pass
            finally:
                items.close()
    except BaseException as error:  # Whatever it is, it is the consumer's.
        end = _End(error)
    channel.put(end)
