"""A host, and the processes that run on it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.hosts import machine
from tests.hosts.switch import Cable

ROOT = Path(__file__).resolve().parent.parent.parent
_NAMESPACES = ("--net", "--uts", "--mount", "--pid")
_SECONDS_TO_START = 60.0


class HostsUnavailable(Exception):
    """This machine cannot make hosts; it says why."""


class Process:
    """A process on a host.

    Args:
        command: What runs.
        environment: Its environment.
        log: Where what it prints goes.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path):
        self._path = log
        with log.open("wb") as output:
            self._entering = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def log(self) -> str:
        """What it has printed."""
        return self._path.read_text(errors="replace")

    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._entering.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Returns its exit code, -n for signal n.

        Raises:
            AssertionError: It has not ended in time.
        """
        self._until(lambda: not self.is_running(), timeout_s, "the end")
        return self._entering.returncode

    def wait_for(self, words: str, timeout_s: float = 60.0) -> None:
        """Waits until it has printed some words.

        Raises:
            AssertionError: It has not in time, or has ended before.
        """
        self._until(lambda: words in self.log or not self.is_running(), timeout_s, repr(words))
        assert words in self.log, f"ended with {self._entering.poll()} without {words!r}:\n{self.log}"

    def signal(self, number: int) -> None:
        """Sends a signal. (`nsenter`, which we have started, passes none on.)"""
        for child in children(self._entering.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    def close(self) -> None:
        """Ends it."""
        self.signal(signal.SIGKILL)
        self._entering.kill()
        self._entering.wait()

    def _until(self, happened: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert time.monotonic() < deadline, f"no sign of {what} after {timeout_s:g} s:\n{self.log}"
            time.sleep(0.02)


class Host:
    """A host of a network.

    Args:
        name: Its name.
        settings: What `machine.py` is told.
        folder: For the logs of its processes and their temporary files.

    Raises:
        HostsUnavailable: This machine cannot make it.

    Attributes:
        cable: Its connection with the others, to be cut.
    """

    def __init__(self, name: str, settings: str, mac: str, folder: Path):
        self.name, self._folder = name, folder
        self._processes: list[Process] = []
        self._control, theirs = socket.socketpair()
        with theirs:
            unshare = ["unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
            self._first = subprocess.Popen(
                [*unshare, sys.executable, "-I", "-S", machine.__file__, str(theirs.fileno()), settings],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        self._control.settimeout(_SECONDS_TO_START)
        said, files, _, _ = socket.recv_fds(self._control, 100, 1)
        if not said:
            self._control.close()
            raise HostsUnavailable(self._first.communicate()[1].strip())
        self.cable = Cable(files[0], mac)

    def start(self, *command: str, **environment: str) -> Process:
        """Starts a command in the root of the repository; `"python"` stands for the interpreter of the tests."""
        command = (sys.executable, *command[1:]) if command[0] == "python" else command
        own = {"TMPDIR": str(self._folder), "HOME": str(self._folder), "PYTHONUNBUFFERED": "1"}
        (inside,) = children(self._first.pid)
        enter = ["nsenter", f"--target={inside}", *_NAMESPACES, f"--wd={ROOT}", "--"]
        log = self._folder / f"{len(self._processes)}.log"
        process = Process([*enter, *command], {**os.environ, **own, **environment}, log)
        self._processes.append(process)
        return process

    def network(self) -> str:
        """Returns what the system calls this host's network."""
        (inside,) = children(self._first.pid)
        return os.readlink(f"/proc/{inside}/ns/net")

    def off(self) -> None:
        """Switches the host off: all that runs there ends at once."""
        self._control.close()
        self._first.wait()
        if self._first.stderr is not None:
            self._first.stderr.close()
        for process in self._processes:
            process.close()


def children(pid: int) -> list[int]:
    """Returns the numbers of the processes that a process has started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # It has ended.
        return []
