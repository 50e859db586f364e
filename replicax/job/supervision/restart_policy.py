"""Pure decisions after an attempt: end, restart, or resume.

- Success, a failure that a restart would only repeat (`exit_codes`), or an interrupted launcher end the job.
- A task that asks to be resumed is not a failure: all start again, as long as a restart is left.
- A failure uses one of `options.restarts`.
- If the same worker has failed twice in a row, or no restart is left, the job goes on with one worker fewer, down to
  `options.min_workers`. That uses no restart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from replicax.errors.exit_codes import ExitCode, is_restartable
from replicax.job.options import Options
from replicax.job.plan import WORKER
from replicax.job.supervision.supervisor import AttemptResult

# A job that asks to be resumed right after its start would go on forever if that never counted as a failure.
_SECONDS_OF_A_USEFUL_ATTEMPT = 5.0


@dataclasses.dataclass(frozen=True)
class Finish:
    """The job is over."""

    code: int  # the launcher's exit code


@dataclasses.dataclass(frozen=True)
class Restart:
    """All tasks start once more."""

    workers: int
    why: str  # for the user


def decide(attempts: Sequence[AttemptResult], options: Options) -> Finish | Restart:
    """Returns what to do after the last of `attempts`."""
    last = attempts[-1]
    if last.interrupted or not is_restartable(last.code):
        return Finish(last.code)
    left = options.job_restarts - _restarts_taken(attempts, options)
    if _is_resumption(attempts, len(attempts) - 1):
        return Restart(last.workers, "it asks to be resumed") if left > 0 else Finish(last.code)
    for_good = left <= 0 or _same_worker_again(attempts, len(attempts) - 1)
    if for_good and last.failed.startswith(WORKER) and last.workers > options.fewest_workers:
        return Restart(last.workers - 1, f"{last.failed} is given up, {last.workers - 1} worker(s) go on")
    if left > 0:
        return Restart(last.workers, f"restart {options.job_restarts - left + 1} of {options.job_restarts}")
    return Finish(last.code)


def _restarts_taken(attempts: Sequence[AttemptResult], options: Options) -> int:
    """Counts the failures before the last attempt after which as many workers started again, and single restarts."""
    alone = sum(attempt.revived for attempt in attempts) if options.restarts is not None else 0
    return alone + sum(
        not _is_resumption(attempts, number) and attempts[number + 1].workers == attempts[number].workers
        for number in range(len(attempts) - 1)
    )


def _is_resumption(attempts: Sequence[AttemptResult], number: int) -> bool:
    attempt = attempts[number]
    if attempt.code != ExitCode.RESUME:
        return False
    follows_another = number > 0 and attempts[number - 1].code == ExitCode.RESUME
    return not (follows_another and attempt.seconds < _SECONDS_OF_A_USEFUL_ATTEMPT)


def _same_worker_again(attempts: Sequence[AttemptResult], number: int) -> bool:
    if number == 0 or _is_resumption(attempts, number - 1):
        return False
    last, before = attempts[number], attempts[number - 1]
    return (last.failed, last.workers) == (before.failed, before.workers)
