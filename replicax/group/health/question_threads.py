"""Asking many workers at the same time, again and again. A worker that is slow to answer delays no other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

_log = logging.getLogger(__name__)


class QuestionThreads:
    """At most `at_once` threads that `ask` workers, by their index, and stay for the next questions."""

    def __init__(self, ask: Callable[[int], None], at_once: int, clock: Callable[[], float] = time.monotonic):
        self._ask, self._at_once, self._clock = ask, at_once, clock
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._open: dict[int, float | None] = {}  # worker: since when it is asked; None while it waits for its turn
        self._threads, self._closed = 0, False

    def begin(self, workers: Iterable[int]) -> None:
        """Asks some workers, except those whose last question is still open."""
        with self._changed:
            for worker in workers:
                if worker not in self._open:
                    self._open[worker] = None
                    self._waiting.append(worker)
            while self._threads < min(self._at_once, len(self._open)):
                self._threads += 1
                threading.Thread(target=self._run, name="replicax-health-asking", daemon=True).start()
            self._changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Returns when no question is open, or after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, seconds)

    def late(self, seconds: float) -> list[int]:
        """Returns the workers whose question has been open for `seconds`, without the time before its turn."""
        now = self._clock()
        with self._changed:
            return [worker for worker, since in self._open.items() if since is not None and now - since >= seconds]

    def close(self) -> None:
        """Stops asking; the threads end when their questions are answered."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                worker = self._waiting.popleft()
                self._open[worker] = self._clock()
            try:
                self._ask(worker)
            except Exception:  # A bug here must not silently leave the worker unwatched.
                _log.exception("The health monitor failed to ask worker %d; it goes on.", worker)
            finally:
                with self._changed:
                    del self._open[worker]
                    self._changed.notify_all()
