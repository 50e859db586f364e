"""A meeting whose processes may be lost and come again, without a restart of the others.

Nobody leads. Each process looks at the board, takes the decision that follows (`decisions`), and proposes it; the store
keeps the first proposal. So any of them may be lost at any time, and two halves of a split network cannot both go on:
there is one store, and a process that cannot reach it stops.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

import replicax.group.health as health
from replicax.cluster.patience import Patience
from replicax.errors import BarrierTimeoutError, ClusterTimeoutError, MeetingError, WorkersDisagreeError
from replicax.errors.exit_codes import ExitCode
from replicax.group.health.launcher_messages import tell_launcher
from replicax.group.membership.attempts import Attempt, CliqueLike, pack, unpack
from replicax.group.membership.job_store import Board
from replicax.group.membership.quorum import AGAIN, Admits, Life, Sheet, View, expected, is_abandoned, next_sheet, verdict
from replicax.group.membership.meeting import MemberLostError, Roll
from replicax.group.membership.heartbeat import Watch

_SECONDS_AT_ONCE = 0.001
# After a broken connection a process without a sign of life is lost sooner.
_SECONDS_IF_BROKEN = 10.0
_SLOWEST_BYTES_PER_S = 1e5
_FAILURES_IN_A_ROW = 5


class BegunError(Exception):
    """A job has begun without this process, which was late, or has taken the place of a lost one."""


class Rules(NamedTuple):
    """Whom a roll waits for and takes; see `decisions.next_sheet`.

    Attributes:
        size: For how many processes the first roll waits.
        fewest: With how many it is content when its time is up; None for all of them.
        renews: Whether each roll has connections of its own.
        admits: Whom it takes besides those that hold the state; None for all who have come.
    """

    size: int
    fewest: int | None = None
    renews: bool = False
    admits: Admits | None = None


#: Makes the clique of a roll, given this process's place on it.
MakeClique = Callable[[Sheet, int], CliqueLike]


class ElasticMeeting:
    """The meeting as one process sees it; `Meeting` says what its methods do.

    Args:
        board: What the processes write for each other.
        life: This run of this process.
        names: What the processes are called, by index.
        make_clique: Makes the clique of a roll.
        patience: How long to wait.
        watch: Notices who gives no sign of life.
        clock: Returns the time in seconds.
        rules: Whom a roll waits for and takes.

    Attributes:
        life: This run of this process.
        patience: How long it waits.
    """

    def __init__(
        self,
        board: Board,
        life: Life,
        names: Sequence[str],
        make_clique: MakeClique,
        patience: Patience,
        watch: Watch | None = None,
        clock: Callable[[], float] = time.monotonic,
        rules: Rules | None = None,
    ):
        self._rules = rules or Rules(len(names))
        self.index, self.size, self.names = life.index, self._rules.size, tuple(names)
        self.life, self.patience, self._clock = life, patience, clock
        self._board, self._make_clique = board, make_clique
        self._watch = watch or Watch(clock)
        self._last: Sheet | None = None
        self._clique: list[CliqueLike] = []  # that of the roll `_last`, as soon as it is made
        self._broken = False
        self._sums = self._failures = 0
        board.enter(life)

    def gather(self, what: str, note: bytes, begins: bool = False) -> Roll:
        """Waits until all who are up have come; see `Meeting`.

        Args:
            what: As there.
            note: As there.
            begins: Whether this process can only be one of those with whom the job begins.

        Raises:
            BegunError: The job has begun without this process, and `begins`.
            ClusterTimeoutError: Not all processes have come to the first roll in time.
            BarrierTimeoutError: All who were on the last roll are silent.
            MeetingError: All of them are gone.
        """
        with health.phase(health.WAIT, what):
            before = self._last
            sheet = self._next(what, note, begins)
        self._tell_of_silent(before, sheet)
        if before is None or before.clique != sheet.clique:
            self._clique = []
        self._last, self._broken, self._sums = sheet, False, 0
        return Roll(sheet.number, tuple(life.index for life in sheet.lives), sheet.notes)

    def total(self, roll: Roll, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns sums over those on the roll; see `Meeting`.

        Raises:
            MemberLostError: Somebody was lost meanwhile.
            WorkersDisagreeError: The processes have brought different arrays.
            MeetingError: The sum fails again and again although nobody is lost.
        """
        if len(self._on(roll).lives) == 1 or not values:
            return list(values)
        packing, parts = pack(values)
        return unpack(packing, self.total_of_vectors(roll, parts, packing.signature), values)

    def total_of_vectors(self, roll: Roll, parts: Sequence[np.ndarray], signature: str) -> list[np.ndarray]:
        """Returns sums of vectors on the host over those on the roll, several of them, as `total` does.

        Args:
            roll: As for `total`.
            parts: The vectors.
            signature: A text that must be the same in all processes.
        """
        sheet = self._on(roll)
        name, self._sums = f"{sheet.number}/{self._sums}", self._sums + 1
        with health.phase(health.WAIT, "the other islands' sums"):
            self._come(sheet, name, signature)
            attempt = self._attempted(sheet, name, [*parts])
        assert attempt.result is not None  # A sum counts only if all have its result.
        self._failures = 0
        return attempt.result

    def _on(self, roll: Roll) -> Sheet:
        if self._last is None or self._last.number != roll.number:
            raise MeetingError(f"Roll {roll.number} is not the last one that gather has returned.")
        return self._last

    @property
    def sheet(self) -> Sheet | None:
        """The last roll of this process, with all that is known of it; None before the first."""
        return self._last

    @property
    def clique(self) -> CliqueLike | None:
        """The clique of the last roll, if it has been made."""
        return self._clique[0] if self._clique else None

    def has_begun(self) -> bool:
        """Returns whether others have met already, without this process."""
        return self._board.latest() is not None

    def leave(self) -> None:
        """Tells the others that this process needs them no more."""
        self._board.end(self.life)

    def _tell_of_silent(self, before: Sheet | None, sheet: Sheet) -> None:
        """Lets the launcher end those who were left out because they show no sign of life."""
        known = before.lives if before else ()
        left_out = set(known) - set(sheet.lives)
        # Newcomers do not know who was there.
        if not left_out or self.life != next((life for life in sheet.lives if life in known), None):
            return
        view = View(self._board.newest(), self._board.gone())
        for life in left_out:
            if not view.is_over(life):
                tell_launcher({"silent": f"worker {life.index}", "life": life.number})

    # The next roll.

    def _next(self, what: str, note: bytes, begins: bool) -> Sheet:
        last = self._board.latest() or self._last
        if self._last is not None and last is not None and last.number < self._last.number:
            last = self._last
        if last is not None and last != self._last and self.life in last.lives:
            return last  # It was on the board when this process wrote its note, and it waited until then.
        self._check_not_left_out(last, begins)
        self._watch.begin()
        self._board.wait_with(self.life, last.number if last else 0, note)
        began = self._clock()
        while True:
            self._propose(last, what, self._clock() - began)
            found = self._board.roll(last.number + 1 if last else 1, self.patience.again)
            if found is None:
                continue
            last = found
            if self.life in last.lives:
                return last
            self._check_not_left_out(last, begins)
            began = self._clock()

    def _check_not_left_out(self, last: Sheet | None, begins: bool) -> None:
        """Checks that the others have not gone on without this process, if they would not take it in again."""
        own = self._last
        if begins and last is not None and own is None:
            raise BegunError
        if self._rules.admits is None or own is None or last is None or last.number == own.number:
            return
        if self.life in own.holders_after(self._broken):
            raise MeetingError(
                f"{self.names[self.index]} gave no sign of life for too long, and the others have gone on without it. "
                "It ends, so that another one takes its place.",
                exit_code=ExitCode.STALLED,  # It is the lost one. The launcher may not know yet that they go on.
            )

    def _propose(self, last: Sheet | None, what: str, waited_s: float) -> None:
        notes = self._board.notes()
        watched = {*notes, *((*last.lives, *last.holders) if last else ())}
        view = self._view(watched, View({}, notes=notes).ready(last), notes, last.number if last else 0)
        broken = self._is_broken(last, view)
        size = self._awaited(last, waited_s, len(view.ready(last)))
        sheet = None
        if broken is not None:
            sheet = next_sheet(last, broken, size, view, self._rules.renews, self._rules.admits)
        if sheet is not None:
            self._board.propose(sheet)
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
            and not any(map(view.is_up, (*last.lives, *last.holders)))
        ):
            lost = [life.index for life in last.lives]
            raise BarrierTimeoutError(what, round(1000 * waited_s), self.index, lost)

    def _awaited(self, last: Sheet | None, waited_s: float, ready: int) -> int:
        """Returns for how many processes the first roll waits: at the end of its time for none, if there are enough."""
        fewest = self._rules.fewest
        is_content = last is None and fewest is not None and waited_s > self.patience.start and ready >= fewest
        return 0 if is_content else self.size

    def _is_broken(self, last: Sheet | None, view: View) -> bool | None:
        """Returns whether a sum of the last roll has failed; None if this process does not know: it proposes nothing.

        Those on the roll know it. If all of them are over, one who held the state before decides that it has.
        """
        if last is None or self.life in last.lives:
            return self._broken
        if self.life not in last.holders or not all(map(view.is_over, last.lives)):
            return None
        self._board.break_off(last.number)
        return True

    def _view(
        self, watched: Iterable[Life], waiting: Iterable[Life], notes: Mapping[Life, tuple[int, bytes]], number: int = 0
    ) -> View:
        """Returns what this process knows of the others.

        Args:
            watched: Those whom it watches.
            waiting: Those of them who wait for others. They do nothing, and that is right; but their pulse must go on.
            notes: The notes on the board.
            number: The number of the roll whose members may have been suspected by others on it.
        """
        dead_s = min(self.patience.silence, _SECONDS_IF_BROKEN if self._broken else math.inf)
        beats = self._board.beats()
        others = set(watched) - {self.life}
        silent = self._watch.silent(others - set(waiting), beats, self.patience.stall, dead_s)
        silent |= self._watch.silent(others & set(waiting), beats, math.inf, dead_s)
        silent |= self._board.suspects(number) - {self.life} if number else set()
        return View(self._board.newest(), self._board.gone(), silent, notes)

    # A sum.

    def _come(self, sheet: Sheet, name: str, signature: str) -> None:
        """Waits until all on the roll have come to a sum, so that connections are only made where all are there."""
        self._watch.begin()
        self._board.come(name, self.index, signature)
        while True:
            found = self._board.signatures(name)
            if len(found) == len(sheet.lives):
                break
            self._check_outcome(sheet, name, came={life for life in sheet.lives if life.index in found})
            absent = next(life.index for life in sheet.lives if life.index not in found)
            self._board.wait_for(name, absent, self.patience.again)
        if len(set(found.values())) > 1:
            own = {self.names[index]: [text] for index, text in sorted(found.items())}
            raise WorkersDisagreeError("arrays to be summed", own)

    def _attempted(self, sheet: Sheet, name: str, parts: list[np.ndarray]) -> Attempt:
        """Returns the attempt when all have its result."""
        attempt = Attempt(self._made_clique(sheet), parts)
        deadline = self._clock() + self.patience.stall + sum(part.nbytes for part in parts) / _SLOWEST_BYTES_PER_S
        self._watch.begin()
        try:
            while not attempt.ended.wait(self.patience.again):
                self._check_outcome(sheet, name, late=self._clock() > deadline)
            self._board.tell_end(name, self.index, attempt.error)
            if attempt.fault is not None:
                raise attempt.fault
            while not self._check_outcome(sheet, name, attempt.error, wait_s=self.patience.again):
                pass
        except BaseException:
            attempt.give_up()
            raise
        return attempt

    def _made_clique(self, sheet: Sheet) -> Callable[[], CliqueLike]:
        made = self._clique  # A thread that is given up must not put its clique into another roll's place.

        def clique() -> CliqueLike:
            if not made:
                made.append(self._make_clique(sheet, sheet.lives.index(self.life)))
            return made[0]

        return clique

    def _check_outcome(
        self,
        sheet: Sheet,
        name: str,
        error: str = "",
        late: bool = False,
        wait_s: float = _SECONDS_AT_ONCE,
        came: Collection[Life] | None = None,
    ) -> bool:
        """Returns whether a sum counts, and waits a little; judges it if that is possible.

        Args:
            sheet: The roll.
            name: The sum.
            error: Why this process's attempt has failed; empty if it has not.
            late: Whether its time is up.
            wait_s: How long to wait for the outcome.
            came: Those who have come to it; None for all. The others must do something on their way.

        Raises:
            MemberLostError: It must be repeated.
        """
        ended = self._board.ended(name)
        outcome = AGAIN if late else verdict(sheet, ended, View({}))
        if outcome is None:
            outcome = self._board.outcome(name, wait_s)
        view = None
        if outcome is None:
            view = self._view(sheet.lives, sheet.lives if came is None else came, {})
            outcome = verdict(sheet, ended, view)
        if outcome is None:
            return False
        if self._board.judge(name, outcome) != AGAIN:
            return True
        self._broken, self._clique = True, []
        self._give_up_if_hopeless(error)
        view = view or self._view(sheet.lives, sheet.lives, {})
        raise MemberLostError([life.index for life in sheet.lives if not view.is_up(life)])

    def _give_up_if_hopeless(self, error: str) -> None:
        self._failures += 1
        if self._failures >= _FAILURES_IN_A_ROW:
            raise MeetingError(
                f"{self._failures} sums in a row have failed, the last with: {error or 'no answer in time'}. "
                "Can all workers reach each other at the addresses of the cluster, at any port?"
            )
