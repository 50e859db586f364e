"""The messages between a client and the hosts of its workers."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from typing import NamedTuple

from replicax.job.processes.task import PlannedTask


@dataclasses.dataclass(frozen=True)
class Client:
    """The process for which workers run.

    Attributes:
        host: The name of its machine.
        pid: Its process id there.
        since: When it began, in seconds since 1970.
    """

    host: str
    pid: int
    since: float

    @classmethod
    def here(cls) -> Client:
        """Returns this process."""
        return cls(socket.gethostname(), os.getpid(), time.time())

    def is_gone(self) -> bool:
        """Returns whether it is known to have ended. Of another machine's processes nothing is known."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} on {self.host}, since {since}"


class HostFacts(NamedTuple):
    """Where a host runs.

    Attributes:
        ip: The address of its node, at which its worker listens.
        node_id: Its Ray node, in hex.
        pid: Its process id there.
    """

    ip: str
    node_id: str
    pid: int


@dataclasses.dataclass(frozen=True)
class Order:
    """An order to a host: to run one process.

    Attributes:
        task: The worker, with the variables that its environment has in addition to those of its machine.
        kind: `"call"` for a pickled call; `"file"` or `"module"` for a script there.
        target: The script or module.
        arguments: Its arguments.
        devices: Virtual CPU devices in the process; None leaves that to its environment.
        token: The secret that all processes of the job share.
        attempt: Number of the attempt, from 0.
        size: Columns and rows of the terminal that it shall see; None for a pipe.
    """

    task: PlannedTask
    kind: str = "call"
    target: str = ""
    arguments: tuple[str, ...] = ()
    devices: int | None = None
    token: str = dataclasses.field(default="", repr=False)
    attempt: int = 0
    size: tuple[int, int] | None = None


class Output(NamedTuple):
    """Something that a worker has printed.

    Attributes:
        chunk: The bytes.
        error: Whether to standard error.
    """

    chunk: bytes
    error: bool


class Failed(NamedTuple):
    """A worker's function or script has failed, though its process may take a while to end.

    Attributes:
        code: Its exit code.
        time: When, by the host's `time.monotonic`.
        words: Its traceback, or what else it said.
        blames: The names of the tasks that caused it.
    """

    code: int
    time: float
    words: str
    blames: tuple[str, ...]


class Meets(NamedTuple):
    """A worker now needs the others.

    Attributes:
        processes: How many there are.
        watches: Whether it watches them.
    """

    processes: int
    watches: bool = False


class CallEnded(NamedTuple):
    """A worker's function has returned, and its process has not ended yet.

    Attributes:
        threads: The names of threads that keep it alive.
    """

    threads: tuple[str, ...]


class Ended(NamedTuple):
    """A worker's process has ended.

    Attributes:
        time: When, by the host's `time.monotonic`.
    """

    time: float


News = Output | Failed | Meets | CallEnded | Ended


class Reply(NamedTuple):
    """The answer of a host that is asked for news.

    Attributes:
        now: The host's `time.monotonic`.
        news: In their order.
    """

    now: float
    news: tuple[News, ...]


class Remains(NamedTuple):
    """The remains of a worker's process that has ended.

    Attributes:
        returncode: Its return code, -n for signal n.
        has_left: Whether it has left the others normally.
        result: What its call returned, pickled; None if it did not return.
    """

    returncode: int
    has_left: bool
    result: bytes | None
