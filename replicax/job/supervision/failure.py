"""The failure of a task, as a value."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from replicax.errors.exit_codes import ExitCode, describe
from replicax.job.processes.events import TaskRun
from replicax.job.processes.output import error_line


class Failure(NamedTuple):
    """A task that failed."""

    task: TaskRun
    code: int
    time: float  # by `time.monotonic`
    culprit: TaskRun  # the task to blame: this one, or the one that caused its failure
    words: str = ""  # the last ones of the task: its error
    told: bool = False  # its script has said how it failed
    log_path: Path | None = None  # of the culprit
    is_lost: bool = False  # with its machine
    is_blamed: bool = False  # by its own script's report

    @property
    def how(self) -> str:
        """How it ended, in a few words."""
        if self.is_lost:
            return "the loss of its machine"
        if self.code == ExitCode.PEER_LOST and self.task == self.culprit and (self.is_blamed or not self.told):
            return f"exit code {self.code}: it was gone, and others needed it"
        return describe(self.code)

    @property
    def error(self) -> str:
        """The line of its last words that names the error of its script; "" if it ended in another way."""
        return error_line(self.words) if self.code == ExitCode.FAILED else ""
