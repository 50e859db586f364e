"""Calls Ray with a deadline: its calls hang if Ray's processes are stopped, and Ctrl-C does not interrupt them."""

from __future__ import annotations

import time
from collections.abc import Callable

from replicax.runtime.threads import StoppedAtEnd

_TICK_S = 0.1  # so that Ctrl-C is heard


def done_within(seconds: float, call: Callable[[], object]) -> bool:
    """Calls a function in a thread of its own; raises what it raises, and returns whether it has returned in time."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = StoppedAtEnd("replicax-ray-call", run)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_TICK_S)
    if failures:
        raise failures[0]
    return not thread.is_alive()
