"""The news that a worker's host has for its client, until that asks for it."""

from __future__ import annotations

import collections
import threading
import time

from replicax.job.elsewhere.messages import CallEnded, Ended, Failed, Meets, News, Output
from replicax.job.processes.events import CallReturned, Event, ProcessEnded, ScriptEnded, WaitingForOthers
from replicax.job.processes.processes import Process

_MOST_BYTES = 4 * 2**20  # A worker that prints more than the client takes has to wait, as with any pipe.


class Outbox:
    """A queue of news with room for some output; the events of a `Process` go in."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._news: collections.deque[News] = collections.deque()
        self._bytes = 0
        self._open = True

    def put(self, event: Event) -> None:
        """Takes an event of the process."""
        process = getattr(event, "process", None)
        assert isinstance(process, Process)
        if isinstance(event, ScriptEnded):
            self._put(Failed(event.code, event.time, process.last_words, event.blames))
        elif isinstance(event, WaitingForOthers):
            self._put(Meets(process.meets, process.watched))
        elif isinstance(event, CallReturned):
            self._put(CallEnded(event.threads))
        elif isinstance(event, ProcessEnded):
            self._put(Ended(event.time))

    def put_output(self, chunk: bytes, error: bool) -> None:
        """Takes some output; waits while there is too much of it."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes < _MOST_BYTES or not self._open)
            self._bytes += len(chunk)
            self._put(Output(chunk, error))

    def take(self, wait_s: float) -> tuple[News, ...]:
        """Returns all news; waits for some, at most so many seconds."""
        end = time.monotonic() + wait_s
        with self._changed:
            self._changed.wait_for(lambda: self._news, max(0.0, end - time.monotonic()))
            taken = tuple(self._news)
            self._news.clear()
            self._bytes = 0
            self._changed.notify_all()
        return taken

    def close(self) -> None:
        """Lets no thread wait in `put_output` any more."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def _put(self, news: News) -> None:
        with self._changed:
            self._news.append(news)
            self._changed.notify_all()


class Relay:
    """One of the two streams of a worker's output, on its way to the client."""

    def __init__(self, outbox: Outbox, error: bool):
        self._outbox, self._error = outbox, error
        self.last_lines: collections.deque[str] = collections.deque(maxlen=0)  # The client has them.

    def feed(self, chunk: bytes, final: bool = False) -> None:
        """Takes some output."""
        del final
        if chunk:
            self._outbox.put_output(chunk, self._error)
