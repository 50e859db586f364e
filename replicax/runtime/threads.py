"""Threads of ours that call compiled code: they are asked to stop, and awaited, before Python ends.

Before version 3.14 Python ends a thread that is left over, a daemon, by unwinding its stack as soon as it comes back
from compiled code. C++ code cannot be unwound so: the process aborts with exit code 134 although its script has
succeeded (`FATAL: exception not rethrown`). Calls of JAX's coordination service, of collectives and of Ray are such
code, and so is any program of JAX's. Threads that call nothing of that kind are plain daemons.

It happens after all functions that were registered with `atexit` since the first of replicax was used: they may need
threads. JAX's own, which takes its service and devices down, comes later.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable

import jax  # noqa: F401 - What it registers with `atexit` is called after what is registered here.

_log = logging.getLogger(__name__)
SECONDS_TO_STOP = 2.0  # Python ends without those that take longer, with a warning.
_running: set[StoppedAtEnd] = set()
_lock = threading.RLock()  # The handler of a signal may interrupt whoever has it.


class StoppedAtEnd(threading.Thread):
    """A thread that is stopped before Python ends; until then it keeps nobody from ending."""

    def __init__(self, name: str, run: Callable[..., object], *args: object, stop: Callable[[], object] = lambda: None):
        super().__init__(target=run, args=args, name=name, daemon=True)
        # Waits for nothing. By default the thread ends by itself, soon after what it works for.
        self._ask = stop

    def start(self) -> None:
        with _lock:
            _running.add(self)
        super().start()

    def run(self) -> None:
        """Called in the thread."""
        try:
            super().run()
        finally:
            with _lock:
                _running.discard(self)

    def stop(self, seconds: float = SECONDS_TO_STOP) -> None:
        """Asks it to stop and waits, at most for so many seconds. May be called twice, and in the thread itself."""
        self._ask()
        if self.is_alive() and self is not threading.current_thread():
            self.join(seconds)


def _stop_all() -> None:
    """Stops all threads; a warning names those that do not stop."""
    deadline, asked = time.monotonic() + SECONDS_TO_STOP, set[StoppedAtEnd]()
    while left := _left():
        for thread in set(left) - asked:  # One of them may have started another one meanwhile.
            thread.stop(0.0)
        asked.update(left)
        if time.monotonic() > deadline:
            names = ", ".join(sorted({thread.name for thread in left}))
            _log.warning("Python ends, and these threads have not stopped within %g s: %s.", SECONDS_TO_STOP, names)
            return
        left[0].join(max(0.0, deadline - time.monotonic()))


def _left() -> list[StoppedAtEnd]:
    with _lock:
        return [thread for thread in _running if thread.is_alive()]


atexit.register(_stop_all)
