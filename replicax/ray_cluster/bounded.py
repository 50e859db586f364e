"""Calls of Ray that must have an end: they stand for ever if Ray's processes are stopped, and do not hear Ctrl-C."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

_TICK_S = 0.1


def done_within(seconds: float, call: Callable[[], Any]) -> bool:
    """Calls something in a thread of its own; returns whether it has come to its end in time.

    Raises:
        Exception: What it raised.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name="replicax-ray-call", daemon=True)
    thread.start()
    deadline = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < deadline:
        thread.join(_TICK_S)
    if failures:
        raise failures[0]
    return not thread.is_alive()
