"""The report of an alarm, and how a process that hangs is ended after it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from replicax.exit_codes import describe
from replicax.health.client import in_parallel
from replicax.health.diagnosis import Diagnosis, Seen
from replicax.health.peers import Peer
from replicax.health.server import stacks
from replicax.health.status import Status, status_from

LOG_DIR = "REPLICAX_LOG_DIR"
_SECONDS_TO_ANSWER = 1.0
_SECONDS_TO_WRITE = 2.0
_LINE = "=" * 100


def gather(peers: Sequence[Peer]) -> dict[int, tuple[Status, str]]:
    """Returns status and stacks of each worker that answers now, by its number."""

    def ask(peer: Peer) -> Callable[[], tuple[Status, str]]:
        return lambda: (
            status_from(peer.client.status(_SECONDS_TO_ANSWER)),
            peer.client.stacks(_SECONDS_TO_ANSWER),
        )

    answers = in_parallel([ask(peer) for peer in peers], 2 * _SECONDS_TO_ANSWER)
    return {peer.index: answer for peer, answer in zip(peers, answers, strict=True) if answer is not None}


def table(workers: Sequence[Seen], answers: dict[int, tuple[Status, str]]) -> str:
    """Returns a line for each worker: what it is doing, or when it was last heard of."""
    lines = []
    for i, worker in enumerate(workers):
        status = answers[i][0] if i in answers else worker.status
        said = "never heard of" if status is None else status.describe()
        if i not in answers and status is not None and not status.ended:
            said = f"no answer; {worker.silent:.1f} s ago: {said}"
        lines.append(f"  {worker.name:<10} {worker.address:<22} {said}")
    return "\n".join(lines)


def alarm_report(
    diagnosis: Diagnosis, workers: Sequence[Seen], me: int, answers: dict[int, tuple[Status, str]], note: str = ""
) -> str:
    """Returns the report of an alarm.

    Args:
        diagnosis: What is wrong.
        workers: All workers.
        me: The number of this one.
        answers: What those that can be reached have answered, without this one.
        note: What else is to be said.
    """
    answers = {**answers, me: (workers[me].status or Status("idle"), stacks())}
    parts = [
        _LINE,
        f"replicax: the job stands still and is ended. {diagnosis.reason}",
        *([note] if note else []),
        f"Found by {workers[me].name}. All workers:",
        table(workers, answers),
        *(f"--- Python stacks of {workers[i].name}\n{answers[i][1].rstrip()}" for i in sorted(answers)),
        f"Every worker that can ends now; {describe(diagnosis.exit_code)}. docs/guides/my-job-hangs.md explains.",
        _LINE,
    ]
    return "\n".join(parts) + "\n"


def write(text: str, name: str) -> None:
    """Writes a report to stderr and, if `REPLICAX_LOG_DIR` is set, to a file there.

    The main thread may hold the lock of stderr for ever, or nobody may read it: so it is given a moment, no more.
    """

    def write_both() -> None:
        folder = os.environ.get(LOG_DIR)
        with contextlib.suppress(OSError):
            if folder:
                Path(folder).mkdir(parents=True, exist_ok=True)
                Path(folder, f"stall-{name.replace(':', '-')}.txt").write_text(text)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError, AttributeError):
            sys.stderr.write(text)
            sys.stderr.flush()

    writer = threading.Thread(target=write_both, daemon=True)
    writer.start()
    writer.join(_SECONDS_TO_WRITE)
