"""From the lines of a ledger to where each worker's time went, and what cost the job most.

Three classes no process can know of itself, so they are found here, where all workers are seen:

- *Waiting for others.* Workers in step all take as long as the slowest one. So in each window of time, a worker has
  waited for what the one with the most time of its own has more of that than it. Time of its own is what a worker did
  outside of computing, and what its devices computed themselves, as profiled steps tell (`runtime/samples.py`). If
  profiles do not tell it clearly, the devices of all count as equally fast.
- *Lost work.* If an attempt fails, all that it has done since the checkpoint that the next one restores is lost.
- *Stall.* If the health monitor has ended a job that stood still, it stood still from its last step on. (A process that
  did not run at all has noticed that itself.)
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from replicax.checks import checked
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.runtime import clock
from replicax.tools.ledger.culprits import Culprit, Evidence, culprit_of
from replicax.tools.ledger.lines import Job, Process, Slice, read_lines

#: The classes that a failure makes worthless.
_LOSABLE = (clock.INPUT, clock.COMPUTING, clock.WAITING, clock.USER, clock.EVALUATION)
_STEPS_IN_A_WINDOW = 4
_FEWEST_PROFILES = 3
_CLEARLY = 0.05  # the part of a step by which a worker's own work must be larger to count
_SPREADS = 3.0  # and how many times their spread


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker's time.

    Attributes:
        name: Its name, such as `"worker 0"`.
        seconds: By class, how long it did that. Their sum is `wall`.
        wall: How long the job took, in seconds, as far as this worker is concerned.
        steps: How many steps it has made: calls of `program`.
        own_step: How many seconds its own devices compute in a step, as profiles tell, without what they wait for
            others' devices; None if too few steps have been profiled.
        program: The program that it has called most, such as `"train_step"`; "" if it has called none.

    Example:
        >>> import replicax as rx
        >>> worker = rx.ledger.Worker("worker 0", {"computing": 9.0, "start": 1.0}, 10.0, steps=90)
        >>> worker.seconds["computing"] / worker.wall
        0.9
    """

    name: str
    seconds: Mapping[str, float]
    wall: float
    steps: int = 0
    own_step: float | None = None
    program: str = ""
    slices: tuple[Slice, ...] = dataclasses.field(default=(), repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Where the time of a job went.

    Attributes:
        workers: The workers, in order.
        begin: When the job began, in seconds since 1970.
        wall: How long it has taken, in seconds.
        code: Its exit code; None while it runs.
        attempts: How often it was started.
        culprit: The cause that has cost it most since its first step; None if nothing stands out.
        unexplained: How many seconds a worker has waited for others, on average, that no class of any worker explains.

    Example:
        >>> import replicax as rx
        >>> worker = rx.ledger.Worker("worker 0", {"computing": 9.0, "start": 1.0}, 10.0)
        >>> rx.ledger.Ledger((worker,), begin=0.0, wall=10.0, code=0, attempts=1).goodput
        0.9
    """

    workers: tuple[Worker, ...]
    begin: float
    wall: float
    code: int | None
    attempts: int
    culprit: Culprit | None = None
    unexplained: float = 0.0

    @property
    def goodput(self) -> float:
        """The part of all workers' time in which they computed, from 0 to 1."""
        wall = sum(worker.wall for worker in self.workers)
        return sum(worker.seconds.get(clock.COMPUTING, 0.0) for worker in self.workers) / wall if wall else 0.0

    @property
    def seconds(self) -> dict[str, float]:
        """By class, how long a worker did that, on average."""
        count = len(self.workers)
        return {name: sum(worker.seconds.get(name, 0.0) for worker in self.workers) / count for name in clock.CLASSES}

    @property
    def slowest(self) -> Worker:
        """The worker that waited least for the others."""
        return min(self.workers, key=lambda worker: worker.seconds.get(clock.WAITING, 0.0))


@checked
def read(folder: str | os.PathLike[str]) -> Ledger:
    """Returns where the time of a job went, which `replicax run` notes in its folder for logs.

    Args:
        folder: The folder for logs, as `--log-dir`, of a job that runs or has ended; or that of `recording`.

    Raises:
        ArgumentError: `folder` is no path.
        LaunchError: There is no ledger, its files are something else, or no worker has started yet.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with rx.ledger.recording(folder):
        ...         pass  # train
        ...     ledger = rx.ledger.read(folder)
        >>> len(ledger.workers)
        1
    """
    job = read_lines(Path(folder))
    if not job.processes:
        raise LaunchError(f"No worker of the job in {folder} has started yet: there is no time to tell of.")
    return ledger_of(job)


def ledger_of(job: Job) -> Ledger:
    """Returns what the lines of a job say."""
    timelines = {task: _timeline(job, task) for task in job.tasks}
    timelines = {task: _with_stalls(job, slices) for task, slices in timelines.items()}
    evidence = Evidence()
    own = _own_steps(job)
    for attempt in sorted({process.attempt for process in job.processes}):
        _split_computing(timelines, attempt, own, evidence)
    timelines = {task: _with_lost_work(job, slices) for task, slices in timelines.items()}
    workers = []
    for task, slices in timelines.items():
        seconds: collections.Counter[str] = collections.Counter()
        calls: collections.Counter[str] = collections.Counter()
        for each in slices:
            seconds.update(each.seconds)
            calls.update(each.steps)
        program, steps = calls.most_common(1)[0] if calls else ("", 0)
        workers.append(
            Worker(
                task,
                {name: float(seconds[name]) for name in clock.CLASSES if seconds[name]},
                job.end - job.begin,
                steps,
                _own_step(own.get(task, {}).get(program, ())),
                program,
                tuple(slices),
            )
        )
    culprit, unexplained = culprit_of(job, timelines, evidence)
    attempts = 1 + max((process.attempt for process in job.processes), default=0)
    return Ledger(tuple(workers), job.begin, job.end - job.begin, job.code, attempts, culprit, unexplained)


# One worker.


def _timeline(job: Job, task: str) -> list[Slice]:
    """Returns all of a worker's time, from the beginning of the job to its end."""
    found: list[Slice] = []
    at, between, is_away = job.begin, clock.START, False
    for process in sorted((each for each in job.processes if each.task == task), key=lambda each: each.begin):
        if process.begin > at:
            found.append(Slice(at, process.begin, {between: process.begin - at}, attempt=process.attempt))
        found += process.slices or _without_lines(job, process)
        at, between, is_away = found[-1].end, clock.RESTART, bool(process.code) and not job.code
    if job.end > at:  # A worker that has failed while the job goes on waits for its restart.
        last = clock.RESTART if is_away else clock.ENDING
        found.append(Slice(at, job.end, {last: job.end - at}, attempt=found[-1].attempt))
    return found


def _without_lines(job: Job, process: Process) -> list[Slice]:
    end = job.end if process.end is None else process.end
    return [Slice(process.begin, end, {clock.START: end - process.begin}, attempt=process.attempt)]


def _with_stalls(job: Job, slices: Sequence[Slice]) -> list[Slice]:
    found = list(slices)
    for attempt in {process.attempt for process in job.processes if process.code == ExitCode.STALLED}:
        of_attempt = [process for process in job.processes if process.attempt == attempt]
        last = max((each.stepped for process in of_attempt for each in process.slices), default=-math.inf)
        ends = max(process.end for process in of_attempt if process.end is not None)
        found = [
            _stalled(each, last) if each.attempt == attempt and last < each.end <= ends else each for each in found
        ]
    return found


def _stalled(each: Slice, since: float) -> Slice:
    """Returns a slice in which a worker stands still since some moment: in what it does at the end."""
    stalled, seconds = each.end - max(each.begin, since), dict(each.seconds)
    left = stalled
    for name in sorted(seconds, key=lambda name: name != each.doing):
        taken = min(left, max(seconds[name], 0.0))
        seconds[name] -= taken
        left -= taken
    return dataclasses.replace(each, seconds={**seconds, clock.STALL: seconds.get(clock.STALL, 0.0) + stalled - left})


def _with_lost_work(job: Job, slices: Sequence[Slice]) -> list[Slice]:
    found = list(slices)
    attempts = sorted({process.attempt for process in job.processes})
    for attempt, following in itertools.pairwise(attempts):
        horizon = kept_until(job, attempt, following)
        steps = [each for each in found if each.attempt == attempt and each.steps]
        if not steps:
            continue  # It had not begun to work.
        begin = max(horizon, min(each.begin for each in steps))
        found = [_lost(each, begin) if each.attempt == attempt and each.end > begin else each for each in found]
    return found


def kept_until(job: Job, attempt: int, following: int) -> float:
    """Returns until when the work of an attempt was kept for the next: the moment of its last checkpoint."""
    restores = any("restored" in note for each in job.processes if each.attempt == following for note in each.notes)
    saved = [
        note["saved"] for each in job.processes if each.attempt == attempt for note in each.notes if "saved" in note
    ]
    return max(saved) if saved and restores else -math.inf


def _lost(each: Slice, begin: float) -> Slice:
    """Returns a slice of which the work since `begin` is lost."""
    part = (each.end - max(each.begin, begin)) / (each.end - each.begin)
    worthless = {name: part * each.seconds[name] for name in _LOSABLE if name in each.seconds}
    kept = {name: seconds - worthless.get(name, 0.0) for name, seconds in each.seconds.items()}
    return dataclasses.replace(each, seconds={**kept, clock.LOST: sum(worthless.values())})


# Workers in step.


def _own_steps(job: Job) -> dict[str, dict[str, list[float]]]:
    """Returns, by task and program, the seconds of its profiled steps that its devices computed themselves."""
    found: dict[str, dict[str, list[float]]] = {}
    for process in job.processes:
        for note in process.notes:
            if "own" in note:
                found.setdefault(process.task, {}).setdefault(note["program"], []).append(float(note["own"]))
    return found


def _own_step(own: Sequence[float]) -> float | None:
    """Returns the own seconds of a worker's step."""
    return statistics.median(own) if len(own) >= _FEWEST_PROFILES else None


def _clear(own: Mapping[str, Mapping[str, Sequence[float]]], tasks: Sequence[str], program: str) -> dict[str, float]:
    """Returns the own seconds of a program's step on each worker, if they differ clearly; otherwise 0."""
    samples = {task: own.get(task, {}).get(program, ()) for task in tasks}
    if any(len(each) < _FEWEST_PROFILES for each in samples.values()):
        return dict.fromkeys(tasks, 0.0)
    medians = {task: statistics.median(each) for task, each in samples.items()}
    spread = max(
        statistics.median([abs(value - medians[task]) for value in each]) / math.sqrt(len(each))
        for task, each in samples.items()
    )
    most, least = max(medians.values()), min(medians.values())
    is_clear = most - least > max(_SPREADS * spread, _CLEARLY * most)
    return medians if is_clear else dict.fromkeys(tasks, 0.0)


def _split_computing(
    timelines: dict[str, list[Slice]],
    attempt: int,
    own: Mapping[str, Mapping[str, Sequence[float]]],
    evidence: Evidence,
) -> None:
    """Tells waiting for others from computing, in the slices of one attempt, and notes for whom they have waited."""
    tasks = [task for task, slices in timelines.items() if _steps_of(slices, attempt)]
    tasks = [task for task in tasks if task.startswith("worker")]
    if len(tasks) < 2:
        return
    stepping = {task: _present([each for each in timelines[task] if each.attempt == attempt]) for task in tasks}
    begin = max(min(each.begin for each in stepping[task] if each.steps) for task in tasks)
    end = min(max(each.end for each in stepping[task] if each.steps) for task in tasks)
    if end - begin <= 0:
        return
    steps = max(sum(sum(each.steps.values()) for each in stepping[task]) for task in tasks)
    width = max(1, math.ceil(_STEPS_IN_A_WINDOW * (end - begin) / max(steps, 1)))
    edges = np.arange(math.floor(begin), math.ceil(end) + width, width, dtype=float)
    tables = {task: _by_window(stepping[task], edges, lambda each: each.seconds, clock.CLASSES) for task in tasks}
    programs = sorted({program for task in tasks for each in stepping[task] for program in each.steps})
    calls = {task: _by_window(stepping[task], edges, lambda each: each.steps, programs) for task in tasks}
    clear = {program: _clear(own, tasks, program) for program in programs}
    computing, waiting = clock.CLASSES.index(clock.COMPUTING), clock.CLASSES.index(clock.WAITING)
    devices = {
        task: sum(calls[task][:, i] * clear[program][task] for i, program in enumerate(programs))
        + np.zeros(len(edges) - 1)
        for task in tasks
    }
    times = {
        task: tables[task].sum(1) - tables[task][:, computing] - tables[task][:, waiting] + devices[task]
        for task in tasks
    }
    most = np.max([times[task] for task in tasks], axis=0)
    for task in tasks:
        waited = np.clip(most - times[task] - tables[task][:, waiting], 0.0, tables[task][:, computing])
        share = np.divide(waited, tables[task][:, computing], out=np.zeros_like(waited), where=waited > 0)
        timelines[task] = [
            _divided(each, edges, share) if each.attempt == attempt else each for each in timelines[task]
        ]
    evidence.take(stepping, times, tables, devices, edges)


def _present(slices: Sequence[Slice]) -> list[Slice]:
    """Returns a worker's slices without those from its loss to its next step: nobody waits for it then."""
    found, is_away = [], False
    for each in slices:
        is_away = (is_away or clock.RESTART in each.seconds) and not each.steps
        found += [] if is_away else [each]
    return found


def _steps_of(slices: Sequence[Slice], attempt: int) -> bool:
    return any(each.attempt == attempt and each.steps for each in slices)


def _by_window(
    slices: Sequence[Slice], edges: np.ndarray, values: Callable[[Slice], Mapping[str, float]], names: Sequence[str]
) -> np.ndarray:
    """Returns an array (windows, names): the values of slices, divided among the windows that they lie in."""
    table = np.zeros((len(edges) - 1, len(names)))
    for each in slices:
        row = np.array([values(each).get(name, 0.0) for name in names])
        for window, part in _windows_of(each, edges):
            table[window] += part * row
    return table


def _windows_of(each: Slice, edges: np.ndarray) -> list[tuple[int, float]]:
    """Returns the windows that a slice lies in, and which part of it lies in each."""
    length = each.end - each.begin
    if length <= 0:
        return []
    first, last = np.searchsorted(edges, [each.begin, each.end], side="right") - 1
    found = []
    for window in range(max(int(first), 0), min(int(last), len(edges) - 2) + 1):
        part = (min(each.end, edges[window + 1]) - max(each.begin, edges[window])) / length
        if part > 0:
            found.append((window, part))
    return found


def _divided(each: Slice, edges: np.ndarray, share: np.ndarray) -> Slice:
    """Returns a slice of whose computing a share, by window, is waiting for others."""
    seconds = dict(each.seconds)
    waited = seconds.get(clock.COMPUTING, 0.0) * sum(part * share[window] for window, part in _windows_of(each, edges))
    if not waited:
        return each
    seconds[clock.COMPUTING] -= waited
    seconds[clock.WAITING] = seconds.get(clock.WAITING, 0.0) + waited
    return dataclasses.replace(each, seconds=seconds)
