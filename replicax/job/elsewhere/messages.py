"""The messages between a client and the hosts of its workers."""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from typing import Any, NamedTuple

from replicax.job.processes.events import CallReturned, ClusterLeft, FoundSilent, MemberNews, WaitingForOthers
from replicax.job.processes.task import PlannedTask


@dataclasses.dataclass(frozen=True)
class Client:
    """The process for which workers run."""

    host: str
    pid: int
    since: float  # when it began, in seconds since 1970

    @classmethod
    def here(cls) -> Client:
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
    """The place where a host runs."""

    ip: str  # of its node; its worker listens there
    node_id: str  # Ray's, in hex
    pid: int


@dataclasses.dataclass(frozen=True)
class Order:
    """An order to a host to run one process."""

    task: PlannedTask  # its environment has only what comes on top of the machine's
    kind: str = "call"  # as in `Program`
    target: str = ""  # the script or module
    arguments: tuple[str, ...] = ()
    devices: int | None = None  # virtual CPU devices in the process; None leaves that to its environment
    token: str = dataclasses.field(default="", repr=False)
    attempt: int = 0
    size: tuple[int, int] | None = None  # columns and rows of the terminal that it shall see; None for a pipe
    keeps_ledger: bool = False


class Output(NamedTuple):
    """Bytes that a worker has printed."""

    chunk: bytes
    error: bool  # to standard error


class Noted(NamedTuple):
    """Whole lines of a worker's ledger."""

    file: str  # its name
    lines: bytes


class Failed(NamedTuple):
    """A worker's function or script has failed, though its process may take a while to end."""

    code: int
    time: float  # by the host's `time.monotonic`
    words: str  # its traceback, or the end of its output
    blames: tuple[str, ...]  # the names of the tasks that caused it


class Drains(NamedTuple):
    """The worker's machine is about to go: nothing more can start there."""


class Ended(NamedTuple):
    """A worker's process has ended."""

    time: float  # by the host's `time.monotonic`


#: Things that a process says of itself: they pass through a host as they are, without the process.
SAID = (CallReturned, ClusterLeft, MemberNews, WaitingForOthers)
News = (
    Output
    | Noted
    | Failed
    | Drains
    | Ended
    | FoundSilent
    | CallReturned[Any]
    | ClusterLeft[Any]
    | MemberNews[Any]
    | WaitingForOthers[Any]
)


class Reply(NamedTuple):
    """The answer of a host that is asked for news."""

    now: float  # by the host's `time.monotonic`
    news: tuple[News, ...]


class Remains(NamedTuple):
    """The remains of a worker's process that has ended."""

    returncode: int  # -n for signal n
    has_left: bool  # it has left the others normally
    result: bytes | None  # a pickled `Returned` or `Raised`; None if its call did neither
