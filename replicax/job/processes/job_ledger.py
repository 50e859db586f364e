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
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from replicax.checks.environment_names import ATTEMPT, LEDGER, LIFE
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal

_COMPUTING = "computing"  # A class of `runtime/clock.py`, whose room loads JAX.
_SECONDS_BETWEEN_STATUS = 2.0
_MOST_CLASSES, _LEAST_SHOWN = 2, 0.05  # beside computing
FOLDER = "ledger"
OF_JOB = "job.jsonl"


def note(folder: Path | None, event: str, **keys: object) -> None:
    """Notes an event in the ledger of the job whose logs are in `folder`; without a folder, nothing."""
    if folder is None:
        return
    line = json.dumps({"at": round(time.time(), 6), "event": event, **keys})
    append(folder, OF_JOB, f"{line}\n".encode())


def append(folder: Path, name: str, lines: bytes) -> None:
    """Appends lines to a file of the ledger of the job whose logs are in `folder`."""
    path = folder / FOLDER / name
    with contextlib.suppress(OSError):  # A full disk must not stop a job; what cannot be written is lost.
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            file.write(lines)


class NewLines:
    """The lines that have been added to a ledger since they were last asked for."""

    def __init__(self, folder: Path):
        self._folder = folder / FOLDER
        self._read: dict[str, int] = {}  # by file, how many bytes

    def take(self) -> Iterator[tuple[str, bytes]]:
        """Yields the names of files and their new lines; a line that is not whole comes later."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path.name, 0))
                lines, end, _ = file.read().rpartition(b"\n")
            if end:
                self._read[path.name] = self._read.get(path.name, 0) + len(lines) + 1
                yield path.name, lines + end


class JobLedger:
    """The launcher's part of a job's ledger; the job begins now, and the terminal shows what it does."""

    def __init__(self, log_dir: Path, workers: int, environment: Mapping[str, str], terminal: Terminal):
        self._folder = log_dir if environment.get(LEDGER) != "0" else None
        note(self._folder, "job", workers=workers)
        self._terminal, self._over, self._ending = terminal, threading.Event(), threading.Lock()
        if self._folder is not None and terminal.shows_bars:
            status = LedgerStatus(self._folder)
            threading.Thread(target=self._show, args=(status,), name="replicax-status", daemon=True).start()

    def end(self, code: int | None) -> None:
        """Notes that the job is over; `code` is None if the launcher itself has failed."""
        with self._ending:
            self._over.set()
        self._terminal.status("")
        note(self._folder, "end", code=code)

    def _show(self, status: LedgerStatus) -> None:
        while not self._over.wait(_SECONDS_BETWEEN_STATUS):
            text = status.text()
            with self._ending:
                if not self._over.is_set():
                    self._terminal.status(text)


class LedgerStatus:
    """Says in a few words what all workers of a job have done since this was made."""

    def __init__(self, folder: Path):
        self._new = NewLines(folder)
        self._seconds: dict[str, float] = {}  # by class
        for _ in self._new.take():
            pass  # Of a job before.

    def text(self) -> str:
        """Returns it, such as `"71% computing, 12% compile, 9% waiting for input"`; "" if nothing is known."""
        for name, lines in self._new.take():
            for line in lines.splitlines() if name != OF_JOB else ():
                for what, more in json.loads(line).get("s", {}).items():
                    self._seconds[what] = self._seconds.get(what, 0.0) + more
        # Whether computing was waiting for others, inside of steps, only the whole ledger tells.
        seconds, whole = self._seconds, sum(self._seconds.values())
        others = sorted((name for name in seconds if name != _COMPUTING), key=lambda name: -seconds[name])
        named = [name for name in others[:_MOST_CLASSES] if seconds[name] >= _LEAST_SHOWN * whole]
        parts = [(name, seconds.get(name, 0.0) / whole) for name in (_COMPUTING, *named)] if whole else []
        return ", ".join(f"{part:.0%} {name}" for name, part in parts)


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
