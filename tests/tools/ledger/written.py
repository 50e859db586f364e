"""Ledgers written by hand, as a launcher and its workers would have written them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BEGIN = 1_000_000.0  # when jobs begin, in seconds since 1970


def lines_of(pid: int, begin: float, seconds: Iterable[Mapping[str, float]], **keys: Any) -> list[dict[str, Any]]:
    """Returns a process's lines: its head, and one for each second, which consists of what is given."""
    found: list[dict[str, Any]] = [{"begin": BEGIN + begin, "pid": pid}]
    for number, each in enumerate(seconds, 1):
        doing = max(each, key=lambda name: each[name])
        last = {"last": BEGIN + begin + number} if "n" in keys else {}
        found.append({"at": BEGIN + begin + number, "in": doing, "s": dict(each), **keys, **last})
    return found


def write(folder: Path, events: Iterable[Mapping[str, Any]], files: Mapping[str, list[dict[str, Any]]]) -> Path:
    """Writes a ledger; the times of events are from the job's beginning."""
    place = folder / "ledger"
    place.mkdir(parents=True)
    told = [{**event, "at": BEGIN + event["at"]} for event in events]
    for name, lines in {"job": told, **files}.items():
        place.joinpath(f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def job(workers: int, end: float, code: int = 0) -> list[dict[str, Any]]:
    """Returns what the launcher writes of a job without incidents; worker `i` has the process `i`, from second 1 on."""
    starts = [_start(index, index, 1.0) for index in range(workers)]
    ends = [{"event": "exit", "task": f"worker {i}", "pid": i, "code": code, "at": end - 1.0} for i in range(workers)]
    return [{"event": "job", "workers": workers, "at": 0.0}, *starts, *ends, {"event": "end", "code": code, "at": end}]


def _start(index: int, pid: int, at: float, attempt: int = 0) -> dict[str, Any]:
    return {"event": "start", "task": f"worker {index}", "attempt": attempt, "life": 0, "pid": pid, "at": at}


def restarted(killed_at: float, again_at: float, end: float) -> list[dict[str, Any]]:
    """Returns what the launcher writes of one worker that is killed and started again."""
    return [
        {"event": "job", "workers": 1, "at": 0.0},
        _start(0, 5, 0.0),
        {"event": "exit", "task": "worker 0", "pid": 5, "code": -9, "at": killed_at},
        _start(0, 6, again_at, attempt=1),
        {"event": "exit", "task": "worker 0", "pid": 6, "code": 0, "at": end},
        {"event": "end", "code": 0, "at": end},
    ]
