"""The events of a job's processes, and what their supervisor knows of a process, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from replicax.job.processes.task import PlannedTask


class ScriptEnded(NamedTuple):
    """A task's script has failed, though its process may take a while to end.

    Attributes:
        process: The process.
        code: Its exit code.
        time: When, by `time.monotonic`.
        blames: The names of the tasks that caused its failure, such as `"worker 2"`.
    """

    process: ProcessLike
    code: int
    time: float
    blames: tuple[str, ...] = ()


class ProcessEnded(NamedTuple):
    """A task's process has ended, and nothing has been cleaned up yet.

    Attributes:
        process: The process.
        time: When, by `time.monotonic`.
    """

    process: ProcessLike
    time: float


class SignalReceived(NamedTuple):
    """The launcher has received a signal.

    Attributes:
        number: Its number.
    """

    number: int


class WaitingForOthers(NamedTuple):
    """A task now needs the others of its cluster, and waits for those that have not come.

    Attributes:
        process: The process.
    """

    process: ProcessLike


class CallReturned(NamedTuple):
    """A task's call has returned; its process ends when its threads have.

    Attributes:
        process: The process.
        threads: The names of threads that keep it alive.
    """

    process: ProcessLike
    threads: tuple[str, ...] = ()


class FoundSilent(NamedTuple):
    """A task has found that another one shows no sign of life.

    Attributes:
        task: The name of that one, such as `"worker 2"`.
        incarnation: Which run of it.
    """

    task: str
    incarnation: int


class MemberNews(NamedTuple):
    """A task tells of those with whom it works, in a job whose workers come and go.

    Attributes:
        process: Its process.
        world: The number of a new world, 0 if it tells something else.
        incarnations: The members of that world: the index of each, and which run of it.
        leaving: Why it is going to leave the others; "" if it is not.
        started_at: The name of the other machine where it runs now; "" if it tells something else.
    """

    process: ProcessLike
    world: int = 0
    incarnations: tuple[tuple[int, int], ...] = ()
    leaving: str = ""
    started_at: str = ""


class Joined(NamedTuple):
    """A worker that was started elsewhere asks to join the job.

    Attributes:
        process: Its process, which is to be admitted or refused.
    """

    process: JoinedWorkerLike


Event = (
    ScriptEnded | ProcessEnded | SignalReceived | WaitingForOthers | CallReturned | FoundSilent | MemberNews | Joined
)
Events = SimpleQueue  # Not Queue: a signal handler may put an event while the main thread takes one.


class EventSink(Protocol):
    """Takes the events of processes, from any thread."""

    def put(self, event: Event) -> None:
        """Takes one."""


class ProcessLike(Protocol):
    """One task's process, here or on another machine, as `Supervisor` knows it."""

    task: PlannedTask
    last_words: str
    told: ScriptEnded | None
    meets: int
    watched: bool
    has_left: bool
    is_guest: bool

    @property
    def pid(self) -> int:
        """The id of the process on its machine; 0 if it is not known."""

    @property
    def log_path(self) -> Path | None:
        """The path of its log, if it has one."""

    def send(self, number: int) -> None:
        """Sends a signal to the task alone."""

    def kill(self) -> None:
        """Kills the task and all processes that it started."""

    def tidy_up(self) -> int:
        """Ends what an ended task has left behind; returns its return code, -n for signal n."""


class JoinedWorkerLike(ProcessLike, Protocol):
    """A process that was started elsewhere to join the job, such as `supervision.joined_workers.JoinedWorker`."""

    host: str
    wanted: int | None

    def admit(self, index: int, environment: Mapping[str, str]) -> None:
        """Gives it a place."""

    def refuse(self, why: str) -> None:
        """Sends it away: it ends, and does not come again."""


def member_news(process: ProcessLike, told: Mapping[str, Any]) -> MemberNews | None:
    """Returns a message about membership; None if a message is none."""
    if "world" in told:
        return MemberNews(
            process, int(told["world"]), tuple((int(i), int(incarnation)) for i, incarnation in told.get("lives", ()))
        )
    return MemberNews(process, leaving=str(told["leaving"])) if "leaving" in told else None
