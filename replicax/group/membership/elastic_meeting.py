"""A meeting whose processes may be lost and come again, without a restart of the others.

Nobody leads. Each process looks at the job store, takes the decision that follows (`decisions`), and proposes it; the
store keeps the first proposal. So any of them may be lost at any time, and two halves of a split network cannot both go
on: there is one store, and a process that cannot reach it stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

import replicax.runtime.activity as activity
from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.errors import BarrierTimeoutError, ClusterTimeoutError, MeetingError, WorkersDisagreeError
from replicax.errors.exit_codes import ExitCode
from replicax.group.launcher_messages import tell_launcher
from replicax.group.membership.attempts import Attempt, CliqueLike, pack, unpack
from replicax.group.membership.heartbeat import Watch
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.meeting import MemberLostError, Quorum
from replicax.group.membership.quorum import (
    AGAIN,
    Admits,
    QuorumRecord,
    View,
    expected,
    is_abandoned,
    next_record,
    verdict,
)

_SECONDS_AT_ONCE = 0.001  # to read what is there
_SLOWEST_BYTES_PER_S = 1e5
_FAILURES_IN_A_ROW = 5


class BegunError(Exception):
    """A job has begun without this process, which was late, or has taken the place of a lost one."""


class Rules(NamedTuple):
    """Whom a quorum waits for and takes; see `quorum.next_record`."""

    size: int  # of the first quorum, if all come in time
    fewest: int | None = None  # with which the first quorum is content when its time is up; None for all of them
    renews: bool = False  # Each quorum has connections of its own.
    admits: Admits | None = None  # besides those that hold the state; None for all that have come


#: Makes the clique of a quorum, given this process's place on it.
MakeClique = Callable[[QuorumRecord, int], CliqueLike]


class ElasticMeeting:
    """The meeting as one process sees it; `Meeting` says what its methods do."""

    def __init__(
        self,
        job_store: JobStore,
        incarnation: Incarnation,
        names: Sequence[str],
        make_clique: MakeClique,
        patience: Patience,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        rules: Rules | None = None,
    ):
        self._rules = rules or Rules(len(names))
        self.index, self.size, self.names = incarnation.index, self._rules.size, tuple(names)
        self.incarnation, self.patience, self._clock = incarnation, patience, clock
        self._job_store, self._make_clique = job_store, make_clique
        self._watch = watch or Watch(clock)
        self._last: QuorumRecord | None = None
        self._clique: list[CliqueLike] = []  # that of the quorum `_last`, as soon as it is made
        self._broken = False
        self._sums = self._failures = 0
        job_store.enter(incarnation)

    def gather(self, what: str, note: bytes, begins: bool = False) -> Quorum:
        """Waits until all that are up have come; with `begins`, raises `BegunError` if the job has begun already."""
        with activity.phase(activity.WAIT, what):
            before = self._last
            record = self._next(what, note, begins)
        self._tell_of_silent(before, record)
        if before is None or before.clique != record.clique:
            self._clique = []
        self._last, self._broken, self._sums = record, False, 0
        return Quorum(record.number, tuple(incarnation.index for incarnation in record.incarnations), record.notes)

    def total(self, quorum: Quorum, values: Sequence[jax.Array]) -> list[jax.Array]:
        if len(self._on(quorum).incarnations) == 1 or not values:
            return list(values)
        packing, parts = pack(values)
        return unpack(packing, self.total_of_vectors(quorum, parts, packing.signature), values)

    def total_of_vectors(self, quorum: Quorum, parts: Sequence[np.ndarray], signature: str) -> list[np.ndarray]:
        """Returns sums of vectors on the host over those on the quorum, several of them, as `total` does."""
        record = self._on(quorum)
        name, self._sums = f"{record.number}/{self._sums}", self._sums + 1
        with activity.phase(activity.WAIT, "the other islands' sums"):
            self._come(record, name, signature)
            attempt = self._attempted(record, name, [*parts])
        assert attempt.result is not None  # A sum counts only if all have its result.
        self._failures = 0
        return attempt.result

    def _on(self, quorum: Quorum) -> QuorumRecord:
        if self._last is None or self._last.number != quorum.number:
            raise MeetingError(f"Roll {quorum.number} is not the last one that gather has returned.")
        return self._last

    @property
    def record(self) -> QuorumRecord | None:
        """The last quorum of this process, with all that is known of it; None before the first."""
        return self._last

    @property
    def clique(self) -> CliqueLike | None:
        """The clique of the last quorum, if it has been made."""
        return self._clique[0] if self._clique else None

    def has_begun(self) -> bool:
        """Returns whether others have met already, without this process."""
        return self._job_store.latest() is not None

    def leave(self) -> None:
        """Tells the others that this process needs them no more."""
        self._job_store.end(self.incarnation)

    def _tell_of_silent(self, before: QuorumRecord | None, record: QuorumRecord) -> None:
        """Lets the launcher end those who were left out because they show no sign of life."""
        known = before.incarnations if before else ()
        left_out = set(known) - set(record.incarnations)
        # Newcomers do not know who was there.
        if not left_out or self.incarnation != next(
            (incarnation for incarnation in record.incarnations if incarnation in known), None
        ):
            return
        view = View(self._job_store.newest(), self._job_store.gone())
        for incarnation in left_out:
            if not view.is_over(incarnation):
                tell_launcher({"silent": f"worker {incarnation.index}", "life": incarnation.number})

    # The next quorum.

    def _next(self, what: str, note: bytes, begins: bool) -> QuorumRecord:
        last = self._job_store.latest() or self._last
        if self._last is not None and last is not None and last.number < self._last.number:
            last = self._last
        if last is not None and last != self._last and self.incarnation in last.incarnations:
            return last  # It was on the job store when this process wrote its note, and it waited until then.
        self._check_not_left_out(last, begins)
        self._watch.begin()
        self._job_store.wait_with(self.incarnation, last.number if last else 0, note)
        began = self._clock()
        while True:
            self._propose(last, what, self._clock() - began)
            found = self._job_store.quorum(last.number + 1 if last else 1, self.patience.again)
            if found is None:
                continue
            last = found
            if self.incarnation in last.incarnations:
                return last
            self._check_not_left_out(last, begins)
            began = self._clock()

    def _check_not_left_out(self, last: QuorumRecord | None, begins: bool) -> None:
        """Checks that the others have not gone on without this process, if they would not take it in again."""
        own = self._last
        if begins and last is not None and own is None:
            raise BegunError
        if self._rules.admits is None or own is None or last is None or last.number == own.number:
            return
        if self.incarnation in own.holders_after(self._broken):
            raise MeetingError(
                f"{self.names[self.index]} gave no sign of life for too long, and the others have gone on without it. "
                "It ends, so that another one takes its place.",
                exit_code=ExitCode.STALLED,  # It is the lost one. The launcher may not know yet that they go on.
            )

    def _propose(self, last: QuorumRecord | None, what: str, waited_s: float) -> None:
        notes = self._job_store.notes()
        watched = {*notes, *((*last.incarnations, *last.holders) if last else ())}
        view = self._view(watched, View({}, notes=notes).ready(last), notes, last.number if last else 0)
        broken = self._is_broken(last, view)
        size = self._awaited(last, waited_s, len(view.ready(last)))
        record = None
        if broken is not None:
            record = next_record(last, broken, size, view, self._rules.renews, self._rules.admits)
        if record is not None:
            self._job_store.propose(record)
        elif is_abandoned(last, broken, view):
            raise MeetingError(
                f"{self.names[self.index]} came for {what}, but all who held the state of the training have ended. "
                "Start the job again; it goes on from its newest checkpoint."
            )
        elif last is None and waited_s > self.patience.start:
            missing = [self.names[index] for index in expected(last, False, self.size, view)]
            raise ClusterTimeoutError(self.names[self.index], self.patience.start, missing, "the meeting")
        elif (
            last is not None
            and waited_s > self.patience.stall
            and not any(map(view.is_up, (*last.incarnations, *last.holders)))
        ):
            lost = [incarnation.index for incarnation in last.incarnations]
            raise BarrierTimeoutError(what, round(1000 * waited_s), self.index, lost)

    def _awaited(self, last: QuorumRecord | None, waited_s: float, ready: int) -> int:
        """Returns for how many processes the first quorum waits: none if its time is over and enough are there."""
        fewest = self._rules.fewest
        is_content = last is None and fewest is not None and waited_s > self.patience.start and ready >= fewest
        return 0 if is_content else self.size

    def _is_broken(self, last: QuorumRecord | None, view: View) -> bool | None:
        """Returns whether a sum of the last quorum has failed; None if it is unknown here: then nothing is proposed."""
        if last is None or self.incarnation in last.incarnations:
            return self._broken
        # Those on the quorum know it. If all of them are over, one that held the state before decides that it has.
        if self.incarnation not in last.holders or not all(map(view.is_over, last.incarnations)):
            return None
        self._job_store.break_off(last.number)
        return True

    def _view(
        self,
        watched: Iterable[Incarnation],
        waiting: Iterable[Incarnation],
        notes: Mapping[Incarnation, tuple[int, bytes]],
        number: int = 0,
    ) -> View:
        """Returns what this process knows of the others, of which it watches `watched`."""
        # After a broken connection a process without a sign of life is lost sooner.
        dead_s = min(self.patience.silence, self.patience.end if self._broken else math.inf)
        beats = self._job_store.beats()
        others = set(watched) - {self.incarnation}
        silent = self._watch.silent(others - set(waiting), beats, self.patience.stall, dead_s)
        # Those that wait for others do nothing, and that is right; but their heartbeat must go on.
        silent |= self._watch.silent(others & set(waiting), beats, math.inf, dead_s)
        # Members of quorum `number` may have been suspected by others on it.
        silent |= self._job_store.suspects(number) - {self.incarnation} if number else set()
        return View(self._job_store.newest(), self._job_store.gone(), silent, notes)

    # A sum.

    def _come(self, record: QuorumRecord, name: str, signature: str) -> None:
        """Waits until all on the quorum have come to a sum, so that connections are only made where all are there."""
        self._watch.begin()
        self._job_store.come(name, self.index, signature)
        while True:
            found = self._job_store.signatures(name)
            if len(found) == len(record.incarnations):
                break
            self._check_outcome(
                record, name, came={incarnation for incarnation in record.incarnations if incarnation.index in found}
            )
            absent = next(incarnation.index for incarnation in record.incarnations if incarnation.index not in found)
            self._job_store.wait_for(name, absent, self.patience.again)
        if len(set(found.values())) > 1:
            own = {self.names[index]: [text] for index, text in sorted(found.items())}
            raise WorkersDisagreeError("arrays to be summed", own)

    def _attempted(self, record: QuorumRecord, name: str, parts: list[np.ndarray]) -> Attempt:
        """Returns the attempt when all have its result."""
        attempt = Attempt(self._made_clique(record), parts)
        deadline = self._clock() + self.patience.stall + sum(part.nbytes for part in parts) / _SLOWEST_BYTES_PER_S
        self._watch.begin()
        try:
            while not attempt.ended.wait(self.patience.again):
                self._check_outcome(record, name, late=self._clock() > deadline)
            self._job_store.tell_end(name, self.index, attempt.error)
            if attempt.fault is not None:
                raise attempt.fault
            while not self._check_outcome(record, name, attempt.error, wait_s=self.patience.again):
                pass
        except BaseException:
            attempt.give_up()
            raise
        return attempt

    def _made_clique(self, record: QuorumRecord) -> Callable[[], CliqueLike]:
        made = self._clique  # A thread that is given up must not put its clique into another quorum's place.

        def clique() -> CliqueLike:
            if not made:
                made.append(self._make_clique(record, record.incarnations.index(self.incarnation)))
            return made[0]

        return clique

    def _check_outcome(
        self,
        record: QuorumRecord,
        name: str,
        error: str = "",
        late: bool = False,
        wait_s: float = _SECONDS_AT_ONCE,
        came: Collection[Incarnation] | None = None,
    ) -> bool:
        """Returns whether a sum counts, after `wait_s` at most; judges it if it can. Raises if it must be repeated."""
        ended = self._job_store.ended(name)
        outcome = AGAIN if late else verdict(record, ended, View({}))
        if outcome is None:
            outcome = self._job_store.outcome(name, wait_s)
        view = None
        if outcome is None:
            # Those that have not come to the sum must do something on their way.
            view = self._view(record.incarnations, record.incarnations if came is None else came, {})
            outcome = verdict(record, ended, view)
        if outcome is None:
            return False
        if self._job_store.judge(name, outcome) != AGAIN:
            return True
        self._broken, self._clique = True, []
        self._give_up_if_hopeless(error)
        view = view or self._view(record.incarnations, record.incarnations, {})
        raise MemberLostError([incarnation.index for incarnation in record.incarnations if not view.is_up(incarnation)])

    def _give_up_if_hopeless(self, error: str) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_IN_A_ROW:
            raise MeetingError(
                f"{self._failures} sums in a row have failed, the last with: {error or 'no answer in time'}. "
                "Can all workers reach each other at the addresses of the cluster, at any port?"
            )
