"""The report of an alarm, and where it is written."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from replicax.checks.environment_names import LOG_DIR
from replicax.errors.exit_codes import describe
from replicax.group.health.client import in_parallel
from replicax.group.health.diagnosis import Diagnosis, ProblemKind, WorkerObservation
from replicax.group.health.peers import WATCHING, Peer
from replicax.group.health.server import stacks
from replicax.group.health.status import Status, status_from
from replicax.group.launcher_messages import tell_launcher

_LINES_OF_WORKERS, _LINES_OF_STACK = 9, 16
_LINE = "=" * 100


def gather(peers: Sequence[Peer]) -> dict[int, tuple[Status, str]]:
    """Returns status and stacks of each worker that answers now, by its index."""

    def ask(peer: Peer) -> Callable[[], tuple[Status, str]]:
        return lambda: (
            status_from(peer.client.status(peer.seconds_to_answer)),
            peer.client.stacks(peer.seconds_to_answer),
        )

    longest = max((peer.seconds_to_answer for peer in peers), default=0.0)
    answers = in_parallel([ask(peer) for peer in peers], 2 * longest)
    return {peer.index: answer for peer, answer in zip(peers, answers, strict=True) if answer is not None}


def table(workers: Sequence[WorkerObservation], answers: dict[int, tuple[Status, str]]) -> str:
    """Returns a line for each worker: what it is doing, or when it was last heard of."""
    lines = []
    for i, worker in enumerate(workers):
        status = answers[i][0] if i in answers else worker.status
        said = "never heard of" if status is None else status.describe()
        if i not in answers and status is not None and not status.ended:
            said = f"no answer; {worker.silent:.1f} s ago: {said}"
        lines.append(f"  {worker.name:<10} {worker.address:<22} {said}")
    return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class AlarmReport:
    """The report of an alarm."""

    text: str  # all of it: what every worker is doing, and the Python stacks of all that answer
    summary: str  # the finding, the workers to blame and some others, and the stack of one main thread


def alarm_report(
    diagnosis: Diagnosis,
    workers: Sequence[WorkerObservation],
    me: int,
    answers: dict[int, tuple[Status, str]],
    note: str = "",
) -> AlarmReport:
    """Returns the report of an alarm."""
    answers = {**answers, me: (workers[me].status or Status("idle"), stacks())}
    why = "would compute wrong numbers" if diagnosis.kind is ProblemKind.DIVERGED else "stands still"
    head = [f"replicax: the job {why} and is ended. {diagnosis.reason}", *([note] if note else [])]
    found = f"Found by {workers[me].name}."
    end = f"Every worker that can ends now; {describe(diagnosis.exit_code)}. docs/guides/my-job-hangs.md explains."
    lines = table(workers, answers).split("\n")
    stacks_of = {i: f"--- Python stacks of {workers[i].name}\n{answers[i][1].rstrip()}" for i in sorted(answers)}
    text = [_LINE, *head, f"{found} All workers:", *lines, *stacks_of.values(), end, _LINE]

    first = sorted(range(len(lines)), key=lambda i: (i not in diagnosis.culprits, i))[:_LINES_OF_WORKERS]
    left_out = len(lines) - len(first)
    told = [lines[i] for i in sorted(first)] + ([f"  ... and {left_out} others"] if left_out else [])
    blamed = [i for i in diagnosis.culprits if i in answers and not answers[i][0].ended][:1]  # No script, no stack.
    summary = [*head, f"{found} Workers:", *told, *(_main_stack(stacks_of[i]) for i in blamed), end]
    return AlarmReport("\n".join(text) + "\n", "\n".join(summary) + "\n")


def _main_stack(stacks: str) -> str:
    """Returns the end of the first thread's stack: where it is now."""
    title, *lines = stacks.split("\n\nThread ")[0].rstrip().split("\n")
    return "\n".join([title, *lines[:1], *lines[1:][-_LINES_OF_STACK:]])


def write(
    report: AlarmReport, name: str, code: int, culprits: Sequence[str], last: bool = True, seconds: float = WATCHING.end
) -> None:
    """Writes a report to a file, if `REPLICAX_LOG_DIR` names a folder, and its summary to the launcher or stderr."""

    def write_all() -> None:
        path = _written(report, name)
        summary = f"{report.summary}The Python stacks of all: {path}\n"
        if _tell_launcher(summary, code, culprits, last):  # It shows the summary of only one worker.
            return
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(report.text if path is None else summary)
            sys.stderr.flush()

    # Only a moment: the main thread may hold the lock of stderr forever, or nobody may read it.
    writer = threading.Thread(target=write_all, daemon=True)
    writer.start()
    writer.join(seconds)


def _written(report: AlarmReport, name: str) -> Path | None:
    """Writes the whole report to a file, if there is a folder for it; returns its path."""
    folder = os.environ.get(LOG_DIR)
    if not folder:
        return None
    path = Path(folder, f"stall-{name.replace(':', '-')}.txt")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report.text, encoding="utf-8")
    except OSError:
        return None
    return path


def _tell_launcher(summary: str, code: int, culprits: Sequence[str], last: bool) -> bool:
    """Tells the launcher how this process ends and who is to blame; returns whether a launcher listens."""
    blames = [culprit.replace(":", " ") for culprit in culprits]
    return tell_launcher({"code": int(code), "time": time.monotonic(), "words": summary, "blames": blames}, last)
