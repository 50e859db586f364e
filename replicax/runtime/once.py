"""Doing a thing once in a process, whichever threads ask for it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable


def once(function: Callable[[], None]) -> Callable[[], None]:
    """Returns `function` as one that runs once; a call meanwhile waits until that has ended."""
    # `functools.cache` would let two threads run it: a method that both of them wrap is wrapped twice.
    lock, done = threading.RLock(), False

    @functools.wraps(function)
    def call() -> None:
        nonlocal done
        if done:
            return
        with lock:
            if not done:
                function()
                done = True

    return call
