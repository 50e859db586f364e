"""The launcher of a job as a test sees it: a process whose output is kept."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from replicax.errors import WorkersFailedError

_SECONDS_BETWEEN_LOOKS = 0.02
_SECONDS_TO_GO = 1.0
_SECONDS_TO_KILL = 20.0
_LINES_SHOWN = 80


class Launcher:
    """A process that starts workers, and its output."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], output: Path):
        self._name, self._output = name, output
        with open(output, "wb") as stream:
            self._popen = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._popen.pid

    @property
    def printed(self) -> str:
        """Its output and that of the workers."""
        return self._output.read_text(errors="replace", encoding="utf-8")

    def is_running(self) -> bool:
        """Returns whether it has not ended."""
        return self._popen.poll() is None

    def wait(self, timeout: float) -> int:
        """Returns its exit code; raises a `WorkersFailedError` if it has not ended in time."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise self._failure(f"was not done after {timeout:g} s", True) from None

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Waits until something is so; raises a `WorkersFailedError` if it is not in time, or the job has ended."""
        deadline = time.monotonic() + timeout
        while not condition():
            if not self.is_running():
                raise self._failure(f"ended with code {self._popen.returncode}, and there was no {what}", False)
            if time.monotonic() > deadline:
                raise self._failure(f"showed no sign of {what} within {timeout:g} s", True)
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def close(self) -> None:
        """Ends it, and the workers with it."""
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):  # The second one kills the workers.
            if self.is_running():
                self._popen.send_signal(number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._popen.wait(_SECONDS_TO_KILL if number == signal.SIGKILL else _SECONDS_TO_GO)

    def _failure(self, problem: str, timed_out: bool) -> WorkersFailedError:
        end = "\n".join(self.printed.splitlines()[-_LINES_SHOWN:])
        return WorkersFailedError(self._name, problem, {"launcher and workers": end}, timed_out)
