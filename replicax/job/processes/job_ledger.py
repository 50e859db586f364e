"""The launcher's part of a ledger: when its processes were started and ended. `tools/ledger/` reads it.

It lies beside the logs, in the folder `ledger/`, as a line of JSON for each event:

| event | keys beside `event` and `at` (seconds since 1970) |
| --- | --- |
| `job` | `workers`: the job begins |
| `start` | `task`, `attempt`, `life`, `pid`: a process has been started |
| `exit` | `task`, `pid`, `code` (-n for signal n); `failed`: when its script had, if it has told so |
| `end` | `code`: the job is over |

Each process writes its own file beside it (`runtime/clock.py`).
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path

from replicax.checks.environment_names import ATTEMPT, LEDGER, LIFE
from replicax.job.processes.task import PlannedTask

FOLDER = "ledger"
OF_JOB = "job.jsonl"


def note(folder: Path | None, event: str, **keys: object) -> None:
    """Notes an event in the ledger of the job whose logs are in `folder`; without a folder, nothing."""
    if folder is None:
        return
    line = json.dumps({"at": round(time.time(), 6), "event": event, **keys})
    path = folder / FOLDER / OF_JOB
    with contextlib.suppress(OSError):  # A full disk must not stop a job; what cannot be written is lost.
        path.parent.mkdir(exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


class JobLedger:
    """The launcher's part of a job's ledger; the job begins now."""

    def __init__(self, log_dir: Path, workers: int, environment: Mapping[str, str]):
        self._folder = log_dir if environment.get(LEDGER) != "0" else None
        note(self._folder, "job", workers=workers)

    def end(self, code: int | None) -> None:
        """Notes that the job is over; `code` is None if the launcher itself has failed."""
        note(self._folder, "end", code=code)


class TaskLedger:
    """The ledger of a task that has a log; of any other, nothing."""

    def __init__(self, task: PlannedTask, log: Path | None):
        has_none = task.environment.get(LEDGER) == "0"
        self._task, self._folder = task, None if log is None or has_none else log.absolute().parent

    def environment(self) -> dict[str, str]:
        """Returns what the task's process is told: where its part is."""
        if self._folder is None:
            return {LEDGER: "0"}
        return {LEDGER: str(self._folder / FOLDER / Path(self._task.log_name).with_suffix(".jsonl"))}

    def started(self, pid: int) -> None:
        """Notes that the task's process has been started."""
        told = self._task.environment
        attempt, life = (int(told.get(name) or 0) for name in (ATTEMPT, LIFE))
        note(self._folder, "start", task=self._task.name, attempt=attempt, life=life, pid=pid)

    def ended(self, pid: int, code: int, failed: float | None = None) -> None:
        """Notes that it has ended, and when its script had failed, by `time.monotonic()`."""
        told = {} if failed is None else {"failed": round(time.time() - time.monotonic() + failed, 6)}
        note(self._folder, "exit", task=self._task.name, pid=pid, code=code, **told)
