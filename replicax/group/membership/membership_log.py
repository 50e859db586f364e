"""The membership log of an elastic job: `members.jsonl`, one JSON object a line, as they were noticed.

| event | keys beside `event` and `time` (seconds since 1970) |
| --- | --- |
| `job` | `fewest`, `most`, `workers`: the range, and how many were started; `attempt` |
| `start` | `worker`, `life`, `pid`: a process has been started; `host`, if another launcher did it |
| `world` | `number`, `members` (indices of workers), `lives`, `why`: these go on together from here |
| `leave` | `worker`, `life`, `reason`: it will leave after its call |
| `end` | `worker`, `life`, `pid`, `code` (null if it is unknown), `reason` |
| `finish` | `code`, `why`: the attempt is over |
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from replicax.contracts.group import Incarnation

NAME = "members.jsonl"


class MembershipLog:
    """Appends to the membership log in a folder. A full disk must not stop a job: what cannot be written is lost."""

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._lock = threading.Lock()

    def job(self, fewest: int, most: int, workers: int, attempt: int) -> None:
        """Notes that an attempt begins."""
        self._write("job", None, fewest=fewest, most=most, workers=workers, attempt=attempt)

    def start(self, incarnation: Incarnation, pid: int, host: str = "") -> None:
        """Notes that a process has been started."""
        self._write(
            "start",
            None,
            worker=incarnation.index,
            life=incarnation.number,
            pid=pid,
            **({"host": host} if host else {}),
        )

    def world(self, number: int, incarnations: Sequence[Incarnation], why: str, at: float | None = None) -> None:
        """Notes that a new set of members goes on together."""
        members, numbers = (
            [incarnation.index for incarnation in incarnations],
            [incarnation.number for incarnation in incarnations],
        )
        self._write("world", at, number=number, members=members, lives=numbers, why=why)

    def leave(self, incarnation: Incarnation, reason: str) -> None:
        """Notes that a member is going to leave the others."""
        self._write("leave", None, worker=incarnation.index, life=incarnation.number, reason=reason)

    def end(self, incarnation: Incarnation, pid: int, code: int | None, reason: str, at: float | None = None) -> None:
        """Notes that a process has ended."""
        self._write("end", at, worker=incarnation.index, life=incarnation.number, pid=pid, code=code, reason=reason)

    def finish(self, code: int, why: str) -> None:
        """Notes that an attempt is over."""
        self._write("finish", None, code=code, why=why)

    def _write(self, event: str, at: float | None, **keys: object) -> None:
        line = json.dumps({"time": round(time.time() if at is None else at, 3), "event": event, **keys}) + "\n"
        with self._lock, contextlib.suppress(OSError), self.path.open("a", encoding="utf-8") as file:
            file.write(line)
