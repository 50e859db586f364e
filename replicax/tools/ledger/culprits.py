"""The culprit: a class of all workers' time, or one worker that the others wait for, that has cost a job most.

It counts since the first step: a short job would always be told of the time before. That is told beside it.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from replicax.runtime import clock
from replicax.tools.ledger.lines import AGAIN, SHAPES, Job, Slice

_LEAST = 0.05  # the part of the time since the first step that a culprit has cost
_MOST_BEFORE = 3  # classes that are named of the time before it
_COMMON = (clock.INPUT, clock.USER, clock.CHECKPOINT, clock.EVALUATION, clock.STALL)
_CLASSES_OF_PREPARING = (clock.TRACE, clock.COMPILE)
_AGAIN = (clock.LOST, clock.RESTART)
_STARTING = (clock.START, clock.IMPORT, clock.MEETING, clock.TRACE, clock.COMPILE, clock.FIRST_VALUES)

PREPARING = "compiling"
RECOMPILING = "compiling again"
NEW_SHAPES = "compiling for new shapes"
FAILING = "failure and restart"
SLOW_DEVICES = "slow inside of steps"
_MAKING = {"": PREPARING, AGAIN: RECOMPILING, SHAPES: NEW_SHAPES}
INCIDENTS = (clock.STALL, FAILING)  # no part of the job's work

_ADVICE = {
    clock.INPUT: "Read ahead (`prefetch`), with more threads (`num_parallel_reads`), or prepare the data once.",
    clock.USER: "Do it less often, or in a thread of its own; values of arrays wait for the devices.",
    clock.CHECKPOINT: "Save in the background (`rx.CheckpointManager` does, unless async_=False) or less often.",
    clock.EVALUATION: "Evaluate less often, on fewer batches, or in a process of its own (`--evaluator`).",
    clock.STALL: "The page 'My job hangs' says how to find the cause.",
    PREPARING: "These are new programs, or those of operations outside of `rx.function`.",
    RECOMPILING: "Make no new function in a loop, and change no object that a step reads: `rx.function` warns of it.",
    NEW_SHAPES: "Give all batches one shape, or a few: pad them, or leave the last one out.",
    clock.LOST: "Save more often, so that less is lost.",
    FAILING: "Most of it is the time until all were at work again: the start, imports and compiling.",
    SLOW_DEVICES: "The program is that of the others: look at this machine, and at how many rows it has.",
}


@dataclasses.dataclass(frozen=True)
class Culprit:
    """The cause that has cost a job most since its first step.

    Attributes:
        worker: The worker for which the others have waited; "" if all workers have lost the time.
        what: A class, `"compiling"` (programs for the first time), `"compiling for new shapes"`, `"compiling again"`
            (for the same shapes), `"failure and restart"`, or `"slow inside of steps"`.
        seconds: How much longer the job took for it, about.
        where: The line of the user's code that was seen most while it happened; "" if none was.
        advice: A thing that may help.

    Example:
        >>> import replicax as rx
        >>> print(rx.ledger.Culprit("worker 1", "waiting for input", 12.0, "train.py:8 rows"))
        worker 1: waiting for input, 12.0 s (train.py:8 rows)
    """

    worker: str
    what: str
    seconds: float
    where: str = ""
    advice: str = ""

    def __str__(self) -> str:
        who = self.worker or "all workers"
        return f"{who}: {self.what}, {self.seconds:.1f} s" + (f" ({self.where})" if self.where else "")


class Evidence:
    """The worker for whom the others have waited, by window, and what that one did meanwhile."""

    def __init__(self) -> None:
        self.blamed: dict[tuple[str, str], float] = collections.defaultdict(float)  # by worker and class: seconds
        self.waited = 0.0  # of workers in step, what they have waited for one that has more time of its own

    def take(
        self,
        stepping: Mapping[str, Sequence[Slice]],
        times: Mapping[str, np.ndarray],
        tables: Mapping[str, np.ndarray],
        devices: Mapping[str, np.ndarray],
        edges: np.ndarray,
    ) -> None:
        """Takes the slices of an attempt and, by window, the workers' time of their own and what it is made of."""
        started = max(map(first_step, stepping.values()))
        found: dict[tuple[str, str], float] = collections.defaultdict(float)
        for window in range(int(np.searchsorted(edges, started)), len(edges) - 1):
            own = {task: float(times[task][window]) for task in stepping}
            slowest = max(own, key=lambda task: own[task])
            excess = _more(own, slowest)
            self.waited += excess
            for i, name in enumerate(clock.CLASSES):
                if name not in (clock.COMPUTING, clock.WAITING):
                    more = _more({task: float(tables[task][window, i]) for task in stepping}, slowest)
                    found[slowest, name] += _at_most(excess, more)
            more = _more({task: float(devices[task][window]) for task in stepping}, slowest)
            found[slowest, SLOW_DEVICES] += _at_most(excess, more)
        # Workers that need not wait in steps wait at the end, for the last one, which has had more of something.
        totals = _totals({task: [e for e in slices if e.begin >= started] for task, slices in stepping.items()})
        last = min(totals, key=lambda task: totals[task][clock.ENDING])
        excess = -_more({task: seconds[clock.ENDING] for task, seconds in totals.items()}, last)
        for name in clock.CLASSES:
            if name not in (clock.COMPUTING, clock.WAITING, clock.ENDING):
                more = _more({task: seconds[name] for task, seconds in totals.items()}, last)
                found[last, name] += _at_most(excess, more - found[last, name])
        for key, more in found.items():
            self.blamed[key] += more


def _more(seconds: Mapping[str, float], task: str) -> float:
    """Returns how much more one worker has than the others, on average."""
    return seconds[task] - float(np.mean([each for name, each in seconds.items() if name != task]))


def _at_most(excess: float, more: float) -> float:  # The others have not waited longer for it.
    return max(0.0, min(more, excess))


def culprit_of(job: Job, timelines: Mapping[str, Sequence[Slice]], evidence: Evidence) -> tuple[Culprit | None, float]:
    """Returns the culprit, if something stands out, and the seconds that workers have waited for no known reason."""
    first = min(map(first_step, timelines.values()), default=job.end)
    since = {task: [each for each in slices if each.begin >= first] for task, slices in timelines.items()}
    whole = max(job.end - first, 0.0)
    totals = _totals(since)
    found = [
        # The seconds may count as lost work now.
        Culprit(
            worker,
            _most_prepared(since[worker]) if what in _CLASSES_OF_PREPARING else what,
            min(seconds, totals[worker].get(what, seconds)),
        )
        for (worker, what), seconds in evidence.blamed.items()
    ]
    mean = {name: sum(seconds[name] for seconds in totals.values()) / len(totals) for name in clock.CLASSES}
    found += [Culprit("", name, mean[name] - _blamed(evidence, name, len(since))) for name in _COMMON]
    again = sum(mean[name] for name in _AGAIN)
    if again:  # The failure is why programs are prepared again.
        again += sum(mean[name] for name in _STARTING)
        failed = min(job.processes, key=lambda each: each.failed)
        found.append(Culprit(failed.task if failed.failed < math.inf else "", FAILING, again))
    else:
        prepared = [_prepared(slices) for slices in since.values()]
        found += [Culprit("", what, sum(each[what] for each in prepared) / len(since)) for what in _MAKING.values()]
    waited = mean[clock.WAITING]
    unexplained = max(0.0, waited - evidence.waited)
    best = max(found, key=lambda each: each.seconds, default=None)
    if best is None or not whole or best.seconds < _LEAST * whole or unexplained > best.seconds:
        return None, unexplained
    kind = clock.LOST if best.what == FAILING and mean[clock.LOST] > best.seconds / 2 else best.what
    where, advice = _where(since, best.what, best.worker), _ADVICE.get(kind, "")
    return dataclasses.replace(best, where=where, advice=advice), unexplained


def before_first_step(timelines: Iterable[Sequence[Slice]]) -> dict[str, float]:
    """Returns, of the classes that took longest before the first step of any worker, the seconds on average."""
    timelines = list(timelines)
    first = min(map(first_step, timelines))
    seconds: collections.Counter[str] = collections.Counter()
    for slices in timelines:
        for each in slices:
            seconds.update(each.seconds if each.begin < first else {})
    return {name: spent / len(timelines) for name, spent in seconds.most_common(_MOST_BEFORE) if spent}


def _prepared(slices: Sequence[Slice]) -> dict[str, float]:
    """Returns the seconds of tracing and compiling, by why that was."""
    found = dict.fromkeys(_MAKING.values(), 0.0)
    for each in slices:
        found[_MAKING[each.making]] += sum(each.seconds.get(name, 0.0) for name in _CLASSES_OF_PREPARING)
    return found


def _most_prepared(slices: Sequence[Slice]) -> str:
    prepared = _prepared(slices)
    return max(prepared, key=lambda what: prepared[what])


def first_step(slices: Sequence[Slice]) -> float:
    """Returns when a worker has made a step: when it calls a program for the second time."""
    calls: collections.Counter[str] = collections.Counter()
    for each in slices:
        calls.update(each.steps)
        if each.steps and max(calls.values()) > 1:
            return each.end
    return slices[-1].end


def _totals(of: Mapping[str, Sequence[Slice]]) -> dict[str, dict[str, float]]:
    """Returns by worker and class its seconds."""
    return {
        task: {name: sum(each.seconds.get(name, 0.0) for each in slices) for name in clock.CLASSES}
        for task, slices in of.items()
    }


def _blamed(evidence: Evidence, name: str, workers: int) -> float:
    """Returns how many of a class's seconds, on average, are those of a worker that the others wait for."""
    return sum(seconds for (_, what), seconds in evidence.blamed.items() if what == name) / workers


def _where(since: Mapping[str, Sequence[Slice]], what: str, worker: str) -> str:
    places: collections.Counter[str] = collections.Counter()
    for task, slices in since.items():
        if worker in ("", task):
            for each in slices:
                for (name, place), count in each.places.items():
                    if name == what:
                        places[place] += count
    return places.most_common(1)[0][0] if places else ""
