"""The process that kills what a process leaves behind if SIGKILL ends it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterable

from replicax.compat.systems import check_system
from replicax.job.processes import reaper_main


class Guard:
    """The process that kills the remaining tasks if its starter is killed."""

    def __init__(self) -> None:
        check_system()
        command = [sys.executable, "-I", "-S", reaper_main.__file__]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._popen.wait()  # That is its parent.

    def watch(self, groups: Iterable[int]) -> None:
        """Makes it kill these process groups too, if this process dies."""
        self._tell("".join(f"+{group}\n" for group in groups))

    def forget(self, group: int) -> None:
        """Makes it forget a group that has ended."""
        self._tell(f"-{group}\n")

    def watch_folder(self, folder: str) -> None:
        """Makes it delete a folder too, if this process dies."""
        self._tell(f"+{folder}\n")

    def forget_folder(self, folder: str) -> None:
        """Makes it forget a folder that is deleted."""
        self._tell(f"-{folder}\n")

    def close(self) -> None:
        """Ends the guard, and waits until it has ended."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()
        self._popen.stdout.read()
        self._popen.stdout.close()

    def _tell(self, lines: str) -> None:
        assert self._popen.stdin is not None
        # It was killed. The tasks still die with the launcher, though not the processes that they started.
        with contextlib.suppress(OSError):
            self._popen.stdin.write(lines.encode())
            self._popen.stdin.flush()
