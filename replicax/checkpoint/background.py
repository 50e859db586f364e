"""What is being written in the background, by directory.

Also by a manager that an error has left alone, and that nobody can ask any more.
"""

from __future__ import annotations

import threading
from pathlib import Path

import replicax.health as health

_running: dict[Path, threading.Thread] = {}


def begin(directory: Path, thread: threading.Thread) -> None:
    """Starts a thread that writes a checkpoint to a directory."""
    _running[directory] = thread
    thread.start()


@health.phase(health.CHECKPOINT)
def wait_for(directory: Path) -> None:
    """Returns when nothing is being written to a directory any more."""
    thread = _running.pop(directory, None)
    if thread is not None:
        thread.join()
