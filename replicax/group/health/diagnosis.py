"""Which worker is to blame: decides from what is known of all workers. Nothing here asks, waits or reads a clock."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from replicax.errors.exit_codes import ExitCode
from replicax.group.health.status import Status
from replicax.runtime.activity import SLOW_PHASES
from replicax.runtime.call_order import Order, RecordedCall

_REFUSALS_OF_THE_DEAD = 2
_OF_PROGRAM = re.compile(r"\(program \d+\)$")
#: `Status.ended` of a script that has ended without an error.
DONE = "done"


@dataclasses.dataclass(frozen=True)
class Limits:
    """How long is too long, in seconds."""

    stall: float  # without an answer, or without progress while others wait
    slow: float = 1800.0  # to compile, read or write a checkpoint, start, or wait for the first batch
    confirm: float = 2.0  # that workers wait for one that has ended


@dataclasses.dataclass(frozen=True)
class WorkerObservation:
    """The known facts about a worker."""

    name: str  # such as `"worker:1"`
    address: str = ""  # of its script, as the cluster names it
    status: Status | None = None  # its last; None if it has never answered, and then it is never blamed
    silent: float = 0.0  # seconds without an answer
    refusals: int = 0  # how many times in a row nothing listened at its port

    @property
    def has_left(self) -> bool:
        """Whether its script has ended, and its process too."""
        return self.status is not None and bool(self.status.ended) and self.refusals > 0

    @property
    def runs(self) -> bool:
        """Whether its script still runs, according to its last status."""
        return self.status is not None and not self.status.ended


class ProblemKind(enum.Enum):
    """What went wrong."""

    DEAD = "dead"
    STOPPED = "stopped"
    ENDED = "ended"
    ABSENT = "absent"
    SLOW = "slow"
    DEADLOCK = "deadlock"
    DIVERGED = "diverged"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """An alarm: what went wrong, and which workers are to blame."""

    kind: ProblemKind
    culprits: tuple[int, ...]  # indices of the workers
    reason: str

    @property
    def exit_code(self) -> ExitCode:
        """How the others end: `DIVERGED` if programs differ, `PEER_LOST` if a worker is gone, otherwise `STALLED`."""
        if self.kind is ProblemKind.DIVERGED:
            return ExitCode.DIVERGED
        return ExitCode.PEER_LOST if self.kind in (ProblemKind.DEAD, ProblemKind.ENDED) else ExitCode.STALLED


def diagnose(workers: Sequence[WorkerObservation], limits: Limits) -> Diagnosis | None:
    """Returns what is wrong; None if nothing is, or if it is not certain yet."""
    return _gone(workers, limits) or _not_coming(workers, limits) or _not_leaving(workers, limits)


def disagrees(order: Order, me: int, workers: Sequence[WorkerObservation]) -> int | None:
    """Returns the index of a worker that has run other programs than this one; None if none is known."""
    known = {i: w.status for i, w in enumerate(workers) if w.status is not None}
    all_done = all(status.ended == DONE for status in known.values())
    # Of two workers, the one that is ahead compares. When all scripts have ended, the numbers of calls must agree too.
    for i, status in known.items():
        if i != me and (order.contradicts(status.order) or (all_done and status.order[0] != order.last[0])):
            return i
    return None


def diverged(
    me: int, other: int, workers: Sequence[WorkerObservation], mine: RecordedCall | None, theirs: RecordedCall | None
) -> Diagnosis:
    """Returns the alarm that two workers have run different programs, from their first calls that differ."""
    pair = sorted([(me, mine), (other, theirs)])
    # A worker has no call there, or it is not known: then the call is None.
    number = next((noted.number for _, noted in pair if noted is not None), None)
    same = mine is not None and theirs is not None and mine.program == theirs.program
    only = ""
    if mine is not None and same and len({call.arguments for _, call in pair if call is not None}) > 1:
        gave = [f"{workers[i].name} {call.arguments}" for i, call in pair if call is not None]
        said = f"have called {mine.program} with different arguments: as call number {number}, {' and '.join(gave)}"
    elif number is None or same:
        said = "have not run the same programs in the same order; where that began is too long ago to be known"
    else:
        only = _only(workers, pair)
        ran = [f"{workers[i].name} {noted.program if noted is not None else 'nothing more'}" for i, noted in pair]
        said = f"have run different programs: as call number {number}, {' and '.join(ran)}"
    said += "; all workers must call the same functions in the same order, with equal arguments"
    found = _diagnosis(workers, ProblemKind.DIVERGED, [i for i, _ in pair], said)
    return dataclasses.replace(found, reason=f"{only}{found.reason}")


def _only(workers: Sequence[WorkerObservation], pair: Sequence[tuple[int, RecordedCall | None]]) -> str:
    """Returns a sentence for the usual mistake, a call behind `if strategy.is_chief`; empty if it may be another."""
    # Of a program and an exchange or computation outside of programs, the latter is what one worker does alone.
    alone = [(i, call) for i, call in pair if call is not None and not _OF_PROGRAM.search(call.program)]
    if len(alone) != 1:
        alone = [(i, call) for i, call in pair if call is not None]
    if len(alone) != 1:
        return ""
    (one, call), (other,) = alone[0], (i for i, _ in pair if i != alone[0][0])
    who = "Only " if len(workers) == len(pair) else f"{workers[other].name} did not, but "
    return f"{who}{workers[one].name} called {call.program}; call it on every worker. "


def _gone(workers: Sequence[WorkerObservation], limits: Limits) -> Diagnosis | None:
    """Finds workers that do not answer at all. They are to blame whether or not somebody waits for them."""
    dead = [i for i, w in enumerate(workers) if w.runs and w.refusals >= _REFUSALS_OF_THE_DEAD]
    if dead:
        return _diagnosis(workers, ProblemKind.DEAD, dead, "is dead: its process is gone. It ended without a word")
    # A worker that has ended is missed only when all have ended, since they leave together.
    all_ended = all(w.status is None or w.status.ended for w in workers)
    stopped = [
        i
        for i, w in enumerate(workers)
        if (w.runs or (w.status is not None and all_ended)) and not w.refusals and w.silent >= limits.stall
    ]
    if stopped:
        longest = max(workers[i].silent for i in stopped)
        said = f"does not answer (stopped, or its machine is out of reach); it was last heard of {longest:.1f} s ago"
        return _diagnosis(workers, ProblemKind.STOPPED, stopped, said)
    return None


def _not_coming(workers: Sequence[WorkerObservation], limits: Limits) -> Diagnosis | None:
    """Finds workers that answer, but do not come to where others wait."""
    known = {i: w.status for i, w in enumerate(workers) if w.status is not None}
    here = {i: s for i, s in known.items() if _is_here(workers[i])}
    waits = {i: seconds for i, s in here.items() if (seconds := _waited(s, limits)) is not None}
    if not waits:
        return None
    missed = _by_missed(known, waits)
    behind = {i: found for i in known if i not in waits and (found := _missed(i, known[i].calls, missed)) is not None}
    ended = [i for i in behind if known[i].ended and behind[i].longest >= _patience(known[i], behind[i], limits)]
    if ended:
        said = f"has ended, and others wait for it{_never_called(workers, known[ended[0]], waits)}"
        return _diagnosis(workers, ProblemKind.ENDED, ended, said)
    # A slow worker is not stuck: it is to blame only if another one has been waiting for as long.
    stuck = {i: min(known[i].seconds, behind[i].longest) for i in behind if not known[i].ended}
    absent = [i for i, age in stuck.items() if known[i].phase not in SLOW_PHASES and age >= limits.stall]
    if absent:
        said = "is alive, but does not come to where others wait for it"
        return _diagnosis(workers, ProblemKind.ABSENT, _furthest_behind(workers, absent), said)
    slow = [i for i, age in stuck.items() if known[i].phase in SLOW_PHASES and age >= limits.slow]
    if slow:
        said = f"takes longer than the {limits.slow:g} s that its phase may last, and others wait for it"
        return _diagnosis(workers, ProblemKind.SLOW, _furthest_behind(workers, slow), said)
    if len(waits) == len(workers) and _stands_still(list(here.values()), limits):
        return _deadlock(workers)
    return None


def _never_called(workers: Sequence[WorkerObservation], ended: Status, waits: Iterable[int]) -> str:
    """Returns which call a worker waits in that another one has ended without; empty if that is not known."""
    for i in waits:
        status = workers[i].status
        if status is not None and status.order[0] > ended.order[0] and (what := status.waits_at or status.program):
            return f": {workers[i].name} called {what!r}; call it on every worker"
    return ""


def _stands_still(statuses: Sequence[Status], limits: Limits) -> bool:
    """Returns whether all have been waiting too long while no bytes flowed, or far too long in any case."""
    # A script may go on for a while as its devices wait. That is progress too.
    in_vain = min(min(status.in_vain or 0.0, status.seconds) for status in statuses)
    return in_vain >= limits.stall or min(min(s.waiting or 0.0, s.seconds) for s in statuses) >= limits.slow


def _not_leaving(workers: Sequence[WorkerObservation], limits: Limits) -> Diagnosis | None:
    """Finds workers that go on for very long after others have ended and wait to leave."""
    waits = [w.status.seconds for w in workers if w.status is not None and w.status.ended == DONE and w.silent == 0.0]
    running = {i: w.status for i, w in enumerate(workers) if w.status is not None and w.runs}
    late = [i for i, status in running.items() if waits and min(status.seconds, max(waits)) >= limits.slow]
    if not late:
        return None
    said = f"goes on, while others have been done for more than {limits.slow:g} s and wait to leave with it"
    return _diagnosis(workers, ProblemKind.SLOW, late, said)


def _is_here(worker: WorkerObservation) -> bool:
    return worker.runs and worker.silent == 0.0 and not worker.refusals


def _waited(status: Status, limits: Limits) -> float | None:
    """Returns how long a worker has been waiting. Time in which bytes flow counts only from `limits.slow` on."""
    return status.waiting if status.waiting is not None and status.waiting >= limits.slow else status.in_vain


class _Wait(NamedTuple):
    """How others wait for a worker."""

    longest: float  # seconds
    shortest: float
    calls: int  # the largest number of the program that they wait in
    noted: int  # the largest number of calls that they have noted, the one where they wait included

    def merged(self, other: _Wait) -> _Wait:
        """Returns how those of both wait."""
        return _Wait(
            max(self.longest, other.longest),
            min(self.shortest, other.shortest),
            max(self.calls, other.calls),
            max(self.noted, other.noted),
        )


def _by_missed(known: Mapping[int, Status], waits: Mapping[int, float]) -> dict[frozenset[int], _Wait]:
    """Returns how workers wait, by those for whom they do; the empty set stands for all."""
    # Most wait for the same ones: of thousands, each is compared with these few, and not with all.
    found: dict[frozenset[int], _Wait] = {}
    for i, seconds in waits.items():
        own, whom = _Wait(seconds, seconds, known[i].calls, known[i].order[0]), frozenset(known[i].waits_for)
        found[whom] = own if whom not in found else found[whom].merged(own)
    return found


def _missed(worker: int, calls: int, missed: Mapping[frozenset[int], _Wait]) -> _Wait | None:
    """Returns how others wait for a worker; None if nobody waits, or it has been there already."""
    waits = [wait for whom, wait in missed.items() if not whom or worker in whom]
    if not waits:
        return None
    found = functools.reduce(_Wait.merged, waits)
    return found if calls <= found.calls else None


def _patience(ended: Status, wait: _Wait, limits: Limits) -> float:
    """Returns how long to wait for a worker that has ended, depending on whether it had begun the others' step."""
    never_came = ended.calls < wait.calls or ended.order[0] < wait.noted or wait.shortest < ended.seconds
    return min(limits.confirm, limits.stall) if never_came else limits.stall


def _furthest_behind(workers: Sequence[WorkerObservation], candidates: Sequence[int]) -> list[int]:
    calls = {i: workers[i].status.calls for i in candidates}  # type: ignore[union-attr]
    return [i for i in candidates if calls[i] == min(calls.values())]


def _deadlock(workers: Sequence[WorkerObservation]) -> Diagnosis:
    """Returns the alarm that all wait and none makes progress."""
    everyone = list(range(len(workers)))
    behind = _furthest_behind(workers, everyone)
    programs = {(w.status.program, w.status.fingerprint) for w in workers if w.status is not None}
    places = [w.status.waits_at for w in workers if w.status is not None and w.status.waits_at]
    if len(behind) < len(everyone):
        said = "is behind the others and makes no progress in its step; all workers wait"
    elif len(set(places)) > 1:
        said = "wait at different calls, which all workers must make in the same order (a deadlock)"
    elif len(programs) > 1:
        said = "run different programs and wait in them for each other (a deadlock)"
    else:
        said = "are all in the same step, and none makes progress (a deadlock, or a step that takes this long)"
    return _diagnosis(workers, ProblemKind.DEADLOCK, behind, said)


def _diagnosis(
    workers: Sequence[WorkerObservation], kind: ProblemKind, culprits: Sequence[int], said: str
) -> Diagnosis:
    names = ", ".join(f"{workers[i].name} ({workers[i].address or 'address unknown'})" for i in culprits)
    states = [workers[i].status for i in culprits]
    known = "; ".join(status.describe() for status in states if status is not None)
    return Diagnosis(kind, tuple(culprits), f"{names} {said}. {'Last known' if kind in _GONE else 'Now'}: {known}.")


_GONE = (ProblemKind.DEAD, ProblemKind.STOPPED)
