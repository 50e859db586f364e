"""The operating systems that can run a job of several processes, and the end of such processes as one group."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from replicax.errors import LaunchError

#: The cure, on another system.
WAY_OUT = "Train in one process here (`python train.py`), or use Linux, macOS or WSL 2."


def why_no_jobs() -> str:
    """Returns the sentence that says why this system cannot run the processes of a job; "" where it can."""
    if hasattr(os, "fork") and hasattr(os, "killpg"):
        return ""
    return f"This system ({sys.platform}) has no process groups, with which a job of several processes is ended as one."


def check_system() -> None:
    """Raises `LaunchError` on a system that cannot run the processes of a job (Windows)."""
    if why := why_no_jobs():
        raise LaunchError(f"{why} {WAY_OUT}")


def kill_group(leader: int) -> None:
    """Kills a process that leads a session of its own, and those that it has started; on Windows it alone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS forbids signals to ended processes.
        if sys.platform == "win32":
            os.kill(leader, signal.SIGTERM)
        else:
            os.killpg(leader, signal.SIGKILL)


def memory_of_machine() -> int:
    """Returns the bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
