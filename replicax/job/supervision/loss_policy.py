"""Tasks that fail, and the decision whether the others can bear it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from replicax.errors.exit_codes import ExitCode, describe
from replicax.job.processes.events import FoundSilent, JoinedWorkerLike, MemberNews, ProcessLike


@dataclasses.dataclass(frozen=True)
class Failure:
    """A task that failed."""

    process: ProcessLike
    code: int
    time: float  # by `time.monotonic`
    culprit: ProcessLike  # the process to blame: this one, or the one that caused its failure

    @property
    def how(self) -> str:
        """How it ended, in a few words."""
        if self.code == ExitCode.PEER_LOST and self.process is self.culprit and self.process.told is None:
            return f"exit code {self.code}: it was gone, and others needed it"
        return describe(self.code)


class LossPolicy(Protocol):
    """Decides about a task whose loss the others can bear."""

    revived: int  # how many tasks were started again alone

    def bears(self, failure: Failure, running: Sequence[ProcessLike]) -> bool:
        """Returns whether the job can go on although a task has failed, given the processes that run."""

    @property
    def awaits(self) -> bool:
        """Whether the job goes on although no process runs, since others may join."""

    def admits(self, joined_worker: JoinedWorkerLike, running: Sequence[ProcessLike]) -> bool:
        """Lets a process join, or refuses it; returns whether it has joined."""

    def succeed(self, failure: Failure) -> None:
        """Has the task started again by `start_due`, unless the others go on without it."""

    @property
    def due(self) -> float:
        """When `start_due` has something to start, by `time.monotonic`; infinity for never."""

    def start_due(self) -> list[ProcessLike]:
        """Starts the tasks that are due."""

    def hears(self, news: MemberNews | FoundSilent, running: Sequence[ProcessLike]) -> None:
        """Records what a task has told about itself and the others; ends one that shows no sign of life."""

    def ended(self, process: ProcessLike, code: int, asked: bool) -> int:
        """Notes that a task has ended, and whether all of them are being ended; returns the code that counts."""

    def done(self, process: ProcessLike, running: Sequence[ProcessLike]) -> None:
        """Notes that a task has ended with 0, after `ended`."""

    def ends_all(self) -> None:
        """Notes that all tasks are going to get a signal, or are killed."""

    def verdict(self) -> Failure | None:
        """Returns why the attempt has failed although none of its last processes has."""
