"""The events of a job's processes, and what their supervisor knows of a process, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from replicax.job.processes.task import PlannedTask


class ScriptEnded(NamedTuple):
    """A task's script has failed, though its process may take a while to end."""

    process: ProcessLike
    code: int
    time: float  # by `time.monotonic`
    blames: tuple[str, ...] = ()  # the names of the tasks that caused its failure, such as "worker 2"


class ProcessEnded(NamedTuple):
    """A task's process has ended, and nothing has been cleaned up yet."""

    process: ProcessLike
    time: float  # by `time.monotonic`


class SignalReceived(NamedTuple):
    """The launcher has received a signal."""

    number: int


class WaitingForOthers(NamedTuple):
    """A task now needs the others of its cluster, and waits for those that have not come."""

    process: ProcessLike


class CallReturned(NamedTuple):
    """A task's call has returned; its process ends when its threads have."""

    process: ProcessLike
    threads: tuple[str, ...] = ()  # the names of those that keep it alive


class FoundSilent(NamedTuple):
    """A task has found that another one shows no sign of life."""

    task: str  # the name of that one, such as "worker 2"
    incarnation: int  # which run of it


class MemberNews(NamedTuple):
    """A task tells of those with whom it works, in a job whose workers come and go."""

    process: ProcessLike
    world: int = 0  # the number of a new world; 0 if it tells something else
    incarnations: tuple[tuple[int, int], ...] = ()  # the members of that world: the index of each, and which run of it
    leaving: str = ""  # why it is going to leave the others; "" if it is not
    started_at: str = ""  # the name of the other machine where it runs now; "" if it tells something else


class Joined(NamedTuple):
    """A worker that was started elsewhere asks to join the job."""

    process: JoinedWorkerLike  # to be admitted or refused


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
    last_words: str  # the end of its output, or its error
    told: ScriptEnded | None  # that its script has failed, if it has said so
    meets: int  # the number of processes in the cluster that it has begun to join; 0 before
    watched: bool  # it watches the others of its cluster, and ends by itself when one is lost
    has_left: bool  # it has left the cluster normally, when Python exited
    is_guest: bool  # it was started elsewhere, to join the job

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

    host: str  # the name of its machine
    wanted: int | None  # the index that it would like to have; None if any will do

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
