"""An attempt at a job as a value: what `machine.next_state` takes and returns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from replicax.cluster.patience import Patience
from replicax.errors.exit_codes import ExitCode, from_signal
from replicax.job.options import Options
from replicax.job.processes.events import News, ScriptEnded, TaskRun
from replicax.job.processes.task import EVALUATOR, WORKER
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.loss_policy import LossPolicy
from replicax.job.supervision.members import Members

#: How long the launcher waits for the processes of its job.
PATIENCE = Patience(
    start=math.inf,  # A script may do anything before it meets the others.
    silence=3.0,  # When one is lost, workers that watch each other notice it by themselves: their scripts learn of it.
    end=5.0,  # Python ends, and JAX leaves the others, within this time; so does who calls `os._exit(0)` after all.
    again=0.1,  # Two tasks that end within this time are ordered by when they ended, not by when that was noticed.
    stall=60.0,  # Preempted workers save one after the other. The first that is done must not disturb the others.
)


class Grace(NamedTuple):
    """How many seconds tasks have to end, from the first signal to SIGKILL."""

    survivors: float = 5.0  # those that are left when one has failed
    all: float = 30.0  # all of them, when the launcher gets a signal

    @classmethod
    def of(cls, options: Options) -> Grace:
        """Returns what a user has chosen."""
        return cls(options.grace_of_survivors, options.grace_of_all)


class Ended(NamedTuple):
    """A process has ended, with all that it started."""

    process: TaskRun
    time: float  # by `time.monotonic`
    code: int  # its exit code
    told: ScriptEnded[TaskRun] | None = None  # how its script has failed, if it has said so
    words: str = ""  # its last ones
    has_left: bool = False
    meets: int = 0
    is_lost: bool = False  # with its machine


class Tick(NamedTuple):
    """Time has passed."""


#: Things that may happen to a job.
Event: TypeAlias = News[TaskRun] | Ended | Tick


class Task(NamedTuple):
    """One run of a task."""

    log_path: Path | None = None
    waits: bool = False  # for a machine with room: it has no process yet
    meets: int = 0  # the number of processes in the cluster that it has begun to join; 0 before
    watches: bool = False  # it watches the others of its cluster, and ends by itself when one is lost
    has_left: bool = False  # it has left the cluster normally, when Python exited
    returned: tuple[str, ...] | None = None  # its call has: the names of the threads that keep its process alive
    is_over: bool = False
    done_at: float | None = None  # when it ended with 0


class Deadlines(NamedTuple):
    """When something is to be done, by `time.monotonic`; infinity for never."""

    miss: float = math.inf  # It is certain then that others need those that ended early.
    ask: float = math.inf  # to end, those that still run
    kill: float = math.inf
    tell: float = math.inf  # which processes stay although all calls have returned


class JobState(NamedTuple):
    """All that is known of an attempt, as a value."""

    workers: int
    losses: LossPolicy = LossPolicy()
    grace: Grace = Grace()
    patience: Patience = PATIENCE
    now: float = 0.0  # of the present event, by `time.monotonic`
    # In the order of their starts; those whose loss is tolerated are forgotten.
    tasks: Mapping[TaskRun, Task] = MappingProxyType({})
    failures: tuple[Failure, ...] = ()
    missed: tuple[Failure, ...] = ()  # Tasks that ended with 0, and that others may still need.
    deadlines: Deadlines = Deadlines()
    signal: int = 0  # that the launcher got first
    killed: bool = False
    blamed_until: float = math.inf  # Later failures come from our own signals.
    members: Members = Members()

    def at(self, now: float) -> JobState:
        """Returns the state at another time."""
        return self._replace(now=now)

    @property
    def running(self) -> tuple[TaskRun, ...]:
        return tuple(run for run, task in self.tasks.items() if not task.is_over)

    @property
    def running_workers(self) -> tuple[TaskRun, ...]:
        """The workers that run; not those that wait for room."""
        return tuple(run for run in self.running if run.type == WORKER and not self.tasks[run].waits)

    @property
    def waiting_workers(self) -> tuple[TaskRun, ...]:
        """The workers that wait for a machine with room."""
        return tuple(run for run in self.running if self.tasks[run].waits)

    @property
    def trains(self) -> bool:
        """Whether any task runs that takes part in the training."""
        return any(run.type != EVALUATOR for run in self.running)

    @property
    def is_tolerant(self) -> bool:
        """Whether single tasks may be lost, come and go: not while all of them are being ended."""
        return self.losses.tolerates and not self.signal and not self.failures

    @property
    def is_over(self) -> bool:
        """Whether the attempt is over: no process runs."""
        return not self.running

    @property
    def due(self) -> float:
        """When something is to be done if nothing happens; infinity for never."""
        waiting = [when for when, _ in self.members.waiting] if self.is_tolerant else []
        return min(*self.deadlines, *waiting)

    @property
    def first_failure(self) -> Failure | None:
        """The first failure, or that of the task to blame, if that has failed too."""
        first = min(self.failures, key=lambda failure: failure.time, default=None)
        own = [failure for failure in self.failures if first is not None and failure.task == first.culprit]
        return own[0] if own else first

    @property
    def code(self) -> int:
        """The exit code of the attempt."""
        first, codes = self.first_failure, {failure.code for failure in self.failures}
        if not self.signal:
            return first.code if first else ExitCode.OK
        if ExitCode.RESUME in codes:  # The launcher's caller should resume the job.
            return ExitCode.RESUME
        return from_signal(self.signal) if codes or self.killed else ExitCode.OK
