"""The lines of a ledger, as processes and their launcher have written them: `runtime/clock.py`, `job_ledger.py`."""

from __future__ import annotations

import collections
import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.errors import LaunchError
from replicax.job.processes.job_ledger import FOLDER, OF_JOB
from replicax.runtime import clock

AGAIN, SHAPES = "again", "shapes"


@dataclasses.dataclass(frozen=True)
class Slice:
    """Some seconds of a worker, at most a few, or a longer time of one class."""

    begin: float  # in seconds since 1970
    end: float
    seconds: Mapping[str, float]  # by class; their sum is its length
    steps: Mapping[str, int] = dataclasses.field(default_factory=dict)  # by program, its calls
    places: Mapping[tuple[str, str], int] = dataclasses.field(default_factory=dict)  # class and line: how often seen
    attempt: int = 0  # of the job
    stepped: float = -math.inf  # when its last call began
    doing: str = ""  # the class at its end
    making: str = ""  # why a program was traced and compiled in it: `AGAIN`, `SHAPES`; "" if it was the first, or JAX's


@dataclasses.dataclass
class Process:
    """A process of a task, from its start to its end."""

    task: str
    attempt: int
    life: int
    begin: float
    pid: int
    end: float | None = None  # None while it runs
    code: int | None = None
    failed: float = math.inf  # when it has failed
    slices: list[Slice] = dataclasses.field(default_factory=list)
    notes: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Job:
    """The contents of a ledger's files."""

    begin: float
    end: float  # of what is known
    code: int | None  # None while it runs
    processes: list[Process]

    @property
    def tasks(self) -> list[str]:
        """The names of all tasks: workers by number, then others."""
        names = {process.task for process in self.processes}
        return sorted(names, key=lambda name: (not name.startswith("worker"), len(name), name))


def read_lines(folder: Path) -> Job:
    """Reads the ledger of a job from its folder for logs. A last line that is not whole is left out."""
    place = folder if folder.name == FOLDER and not (folder / FOLDER).is_dir() else folder / FOLDER
    try:
        files = {path.stem: _parsed(path) for path in sorted(place.glob("*.jsonl"))}
    except OSError as error:
        raise LaunchError(f"The ledger in {place} cannot be read: {error}.") from error
    events = files.pop(Path(OF_JOB).stem, [])
    if not any(files.values()) and not events:
        raise LaunchError(
            f"There is no ledger in {folder}: `replicax run --log-dir {folder}` keeps one, unless REPLICAX_LEDGER is "
            "0, and so does `with rx.ledger.recording(folder)`."
        )
    try:
        return _job(events, files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LaunchError(f"{place} holds no ledger of this version of replicax: {error!r}.") from error


def _parsed(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    try:
        return [json.loads(line) for line in lines if line.endswith("\n")]
    except ValueError as error:
        raise LaunchError(f"{path} is no ledger: {error}.") from error


def _job(events: list[dict[str, Any]], files: Mapping[str, list[dict[str, Any]]]) -> Job:
    jobs = [i for i, event in enumerate(events) if event["event"] == "job"]
    events = events[jobs[-1] :] if jobs else []  # The folder may have been used before.
    begin = events[0]["at"] if events else None
    processes = [
        Process(each["task"], each["attempt"], each["life"], each["at"], each["pid"])
        for each in events
        if each["event"] == "start"
    ]
    for event in events:
        if event["event"] == "exit":
            found = [each for each in processes if each.pid == event["pid"] and each.task == event["task"]]
            found[-1].end, found[-1].code = event["at"], event["code"]
            found[-1].failed = event.get("failed", event["at"]) if event["code"] else math.inf
    for stem, lines in files.items():
        for run in _runs(lines):
            task = stem.replace("-", " ")
            of_task = [each for each in processes if each.task == task and each.pid == run[0]["pid"]]
            if not of_task and begin is not None:
                continue  # of a job before
            if not of_task:  # There was no launcher.
                of_task = [Process(task, 0, 0, run[0]["begin"], run[0]["pid"])]
                processes += of_task
            _take(of_task[-1], run)
    ends = [event for event in events if event["event"] == "end"]
    last = max([*(each.slices[-1].end for each in processes if each.slices), *(e["at"] for e in events)])
    return Job(
        min(each.begin for each in processes) if begin is None else begin,
        ends[-1]["at"] if ends else last,
        ends[-1]["code"] if ends else None,
        processes,
    )


def _runs(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Returns the lines of each process."""
    found: list[list[dict[str, Any]]] = []
    for line in lines:
        if "begin" in line:
            found.append([])
        found[-1].append(line)
    return found


def _take(process: Process, lines: list[dict[str, Any]]) -> None:
    """Gives a process what it has written. Between its start and its first line, Python starts."""
    first, *rest = lines
    at, attempt = first["begin"], process.attempt
    begun = {clock.START: at - process.begin}
    process.slices.append(Slice(process.begin, max(at, process.begin), begun, attempt=attempt))
    making, made = "", collections.defaultdict[tuple[str, str], set[str]](set)  # by program, the shapes
    for line in rest:
        process.slices.append(
            Slice(
                at,
                line["at"],
                line["s"],
                steps=line.get("n", {}),
                places={(name, place): count for name, place, count in line.get("where", [])},
                attempt=attempt,
                stepped=line.get("last", -math.inf),
                doing=line["in"],
                making=making,
            )
        )
        for note in line.get("notes", []):
            process.notes.append(note)
            if "makes" in note:
                known = made[note["makes"], note["code"]]
                making = AGAIN if note["of"] in known else SHAPES if known else ""
                known.add(note["of"])
            elif "made" in note:
                making = ""
        at = line["at"]
    if process.end is not None and process.end > at:
        # After its last line it did what it had done in the second before, for all that is known, unless it ended by
        # itself. Its class when it wrote that line says less: a save, for example, may be short.
        before = collections.Counter[str]()
        for each in process.slices:
            before.update(each.seconds if each.end > at - 1.0 else {})
        doing = clock.ENDING if process.code == 0 else max(before, key=lambda name: before[name])
        process.slices.append(Slice(at, process.end, {doing: process.end - at}, attempt=attempt))
