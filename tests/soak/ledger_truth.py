"""The notes of a job of tests/soak/ledger_job.py, compared with its ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import replicax as rx
from replicax.tools.ledger.culprits import first_step

SLOWER_S, STEPS = 0.01, 200


def errors_of(fault: str, found: rx.ledger.Ledger, folder: Path) -> list[tuple[str, float]]:
    """Returns what was compared, and the error of each class as a part of the job's time."""
    kind, _, slow = fault.partition(":")
    told = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("truth-*.json"))}
    errors: list[tuple[str, float]] = []

    def compare(name: str, counted: float, true: float) -> None:
        errors.append((name, abs(counted - true) / found.wall))

    def of(index: int, attempt: int = 0) -> dict[str, Any]:
        return told.get(f"truth-{index}-{attempt}", {})

    def waited(worker: rx.ledger.Worker) -> float:
        """Returns how long a worker has waited since its first step: before, others may have compiled longer."""
        first = first_step(worker.slices)
        return sum(each.seconds.get("waiting for others", 0.0) for each in worker.slices if each.begin >= first)

    for index, worker in enumerate(found.workers):
        seconds = worker.seconds
        # Not of "callbacks and user code": the script does other things, too.
        for name in ("evaluation", "checkpoint", "stall", "waiting for input"):
            if kind not in ("kill", "error", "stand", "hidden") and name in of(index):
                compare(f"{worker.name} {name}", seconds.get(name, 0.0), of(index)[name])
        others = [of(other) for other in range(len(found.workers)) if other != index]
        if slow and int(slow) != index:
            name = {"slow_callback": "callbacks and user code", "halt": "stall"}.get(kind)
            if name is not None:
                compare(
                    f"{worker.name} waiting",
                    waited(worker),
                    max(e.get(name, 0.0) for e in others),
                )
            if kind == "slow_input":
                more = max(e["waiting for input"] for e in others) - of(index)["waiting for input"]
                compare(f"{worker.name} waiting", waited(worker), more)
            if kind == "slow_backward":
                compare(f"{worker.name} waiting", waited(worker), SLOWER_S * STEPS)
        if kind in ("kill", "error") and slow and int(slow) == index:
            first = of(index)
            compare(f"{worker.name} lost", seconds.get("lost work", 0.0), first["killed"] - first["saved"])
        if kind == "stand" and slow:
            end = found.begin + found.wall
            compare(f"{worker.name} stall", seconds.get("stall", 0.0), end - of(int(slow))["stands"])
    return errors
