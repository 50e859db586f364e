"""The events of a job, and what its launcher knows of a process, wherever it runs.

Processes report their events from threads, each with itself as its `process`. The machine that decides about them
(`supervision/machine.py`) takes the same events as values, with a `TaskRun` in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from replicax.checks.environment_names import LIFE
from replicax.contracts.group import Incarnation
from replicax.job.processes.task import PlannedTask

P = TypeVar("P", covariant=True)  # what stands for a process: the object, or its `TaskRun`


@dataclasses.dataclass(frozen=True)
class TaskRun:
    """One run of a task, as a value."""

    type: str
    index: int
    life: int = 0  # which run of it, in jobs where single tasks start again

    @classmethod
    def of(cls, task: PlannedTask) -> TaskRun:
        """Returns the run that is planned."""
        return cls(task.type, task.index, int(task.environment.get(LIFE, 0)))

    @property
    def name(self) -> str:
        """The task's name, such as "worker 2"."""
        return f"{self.type} {self.index}"

    @property
    def incarnation(self) -> Incarnation:
        """The run, as workers whose members come and go know it."""
        return Incarnation(self.index, self.life)


class Started(NamedTuple, Generic[P]):
    """A process runs."""

    process: P
    pid: int  # on its machine; 0 if it is not known
    host: str = ""  # its machine, if that is another one
    log_path: Path | None = None
    waits: bool = False  # for a machine with room; this event comes again when its process runs


class ScriptEnded(NamedTuple, Generic[P]):
    """A task's script has failed, though its process may take a while to end."""

    process: P
    code: int
    time: float  # by `time.monotonic`
    blames: tuple[str, ...] = ()  # the names of the tasks that caused its failure, such as "worker 2"


class ProcessEnded(NamedTuple, Generic[P]):
    """A task's process has ended, and nothing has been cleaned up yet."""

    process: P
    time: float  # by `time.monotonic`


class WaitingForOthers(NamedTuple, Generic[P]):
    """A task now needs the others of its cluster, and waits for those that have not come."""

    process: P
    size: int = 0  # of its cluster: the number of processes
    watches: bool = False  # it watches the others, and ends by itself when one is lost


class ClusterLeft(NamedTuple, Generic[P]):
    """A task has left its cluster normally: its script has come to its end."""

    process: P


class CallReturned(NamedTuple, Generic[P]):
    """A task's call has returned; its process ends when its threads have."""

    process: P
    threads: tuple[str, ...] = ()  # the names of those that keep it alive


class MemberNews(NamedTuple, Generic[P]):
    """A task tells of those with whom it works, in a job whose workers come and go."""

    process: P
    world: int = 0  # the number of a new world; 0 if it tells something else
    incarnations: tuple[tuple[int, int], ...] = ()  # the members of that world: the index of each, and which run of it
    leaving: str = ""  # why it is going to leave the others; "" if it is not


class FoundSilent(NamedTuple):
    """A task has found that another one shows no sign of life."""

    task: str  # the name of that one, such as "worker 2"
    incarnation: int  # which run of it


class SignalReceived(NamedTuple):
    """The launcher has received a signal."""

    number: int


News = (
    Started[P]
    | ScriptEnded[P]
    | WaitingForOthers[P]
    | ClusterLeft[P]
    | CallReturned[P]
    | MemberNews[P]
    | FoundSilent
    | SignalReceived
)
Event = News["ProcessLike"] | ProcessEnded["ProcessLike"]
Events = SimpleQueue  # Not Queue: a signal handler may put an event while the main thread takes one.


class EventSink(Protocol):
    """Takes the events of processes, from any thread."""

    def put(self, event: Event) -> None:
        """Takes one."""


class ProcessLike(Protocol):
    """One task's process, here or on another machine."""

    task: PlannedTask
    last_words: str  # the end of its output, or its error
    told: ScriptEnded[ProcessLike] | None  # that its script has failed, if it has said so
    meets: int  # the number of processes in the cluster that it has begun to join; 0 before
    has_left: bool  # it has left the cluster normally, when Python exited
    waits: bool  # for a machine with room for it
    is_lost: bool  # nothing is heard of its machine any more

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


def member_news(process: ProcessLike, told: Mapping[str, Any]) -> MemberNews[ProcessLike] | None:
    """Returns a message about membership; None if a message is none."""
    if "world" in told:
        return MemberNews(
            process, int(told["world"]), tuple((int(i), int(incarnation)) for i, incarnation in told.get("lives", ()))
        )
    return MemberNews(process, leaving=str(told["leaving"])) if "leaving" in told else None
