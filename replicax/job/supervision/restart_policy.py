"""The decision after an attempt: end, restart, or resume.

- Success, a failure that a restart would only repeat (`exit_codes`), or an interrupted launcher end the job.
- A task that asks to be resumed is not a failure: all start again, as long as a restart is left.
- A failure uses one of the restarts.
- If the same worker has failed twice in a row, or no restart is left, the job goes on with one worker fewer, down to
  the fewest. That uses no restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from replicax.errors.exit_codes import ExitCode, is_restartable
from replicax.job.options import Options
from replicax.job.processes.task import WORKER


@dataclasses.dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended."""

    workers: int
    code: int  # of the task that failed first, 0 if none did; if interrupted, of the signal or a resumption
    failed: str = ""  # the name of that task; "" if none failed
    seconds: float = 0.0
    interrupted: bool = False  # a signal has ended it (Ctrl-C, SIGTERM)
    revived: int = 0  # how many of its tasks were started again alone


@dataclasses.dataclass(frozen=True)
class Finish:
    """The job is over."""

    code: int  # the launcher's exit code


@dataclasses.dataclass(frozen=True)
class Restart:
    """All tasks start once more."""

    workers: int
    why: str  # for the user


@dataclasses.dataclass(frozen=True)
class RestartPolicy:
    """Decides whether a job is started again; by default it is not."""

    restarts: int = 0  # how often all tasks are started again
    fewest_workers: int | None = None  # with how few the job goes on when workers die for good; None: with no fewer
    counts_single: bool = True  # Tasks that are started again alone use those restarts.
    # A job that asks to be resumed right after its start would go on forever if that never counted as a failure.
    useful_attempt: float = 5.0  # seconds

    @classmethod
    def of(cls, options: Options) -> RestartPolicy:
        """Returns the policy that a user has chosen."""
        return cls(options.job_restarts, options.fewest_workers, options.restarts is not None)

    def decide(self, attempts: Sequence[AttemptResult]) -> Finish | Restart:
        """Returns what to do after the last of `attempts`."""
        last = attempts[-1]
        if last.interrupted or not is_restartable(last.code):
            return Finish(last.code)
        left = self.restarts - self._taken(attempts)
        if self._is_resumption(attempts, len(attempts) - 1):
            return Restart(last.workers, "it asks to be resumed") if left > 0 else Finish(last.code)
        for_good = left <= 0 or self._same_worker_again(attempts, len(attempts) - 1)
        fewest = last.workers if self.fewest_workers is None else self.fewest_workers
        if for_good and last.failed.startswith(WORKER) and last.workers > fewest:
            return Restart(last.workers - 1, f"{last.failed} is given up, {last.workers - 1} worker(s) go on")
        if left > 0:
            return Restart(last.workers, f"restart {self.restarts - left + 1} of {self.restarts}")
        return Finish(last.code)

    def _taken(self, attempts: Sequence[AttemptResult]) -> int:
        """Counts the failures before the last attempt after which as many workers started again, and single ones."""
        alone = sum(attempt.revived for attempt in attempts) if self.counts_single else 0
        return alone + sum(
            not self._is_resumption(attempts, number) and attempts[number + 1].workers == attempts[number].workers
            for number in range(len(attempts) - 1)
        )

    def _is_resumption(self, attempts: Sequence[AttemptResult], number: int) -> bool:
        attempt = attempts[number]
        if attempt.code != ExitCode.RESUME:
            return False
        follows_another = number > 0 and attempts[number - 1].code == ExitCode.RESUME
        return not (follows_another and attempt.seconds < self.useful_attempt)

    def _same_worker_again(self, attempts: Sequence[AttemptResult], number: int) -> bool:
        if number == 0 or self._is_resumption(attempts, number - 1):
            return False
        last, before = attempts[number], attempts[number - 1]
        return (last.failed, last.workers) == (before.failed, before.workers)
