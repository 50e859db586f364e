"""The threads that write checkpoints in the background, by directory.

A thread is found here even when its manager is gone, because an error has ended the code that made it.
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
    """Returns when no thread writes to a directory any more."""
    thread = _running.pop(directory, None)
    if thread is not None:
        thread.join()
