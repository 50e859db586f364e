"""The sentry: a thread that notices losses and newcomers while the thread that trains computes, and interrupts it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import jax

from replicax.cluster.patience import Patience
from replicax.errors import MeetingError
from replicax.group.health.launcher_messages import tell_launcher
from replicax.runtime.activity import WAITING_PHASES, now
from replicax.group.membership.job_store import Board
from replicax.group.membership.interrupted_wait import Breaker
from replicax.group.membership.quorum import Life, Sheet, View
from replicax.group.membership.heartbeat import Watch
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_INTERRUPTS = 0.05
_SECONDS_TO_FAIL = 1.0  # that a collective has when its connections are shut down
_SECONDS_IN_A_CALL = 1800.0  # after which nobody is to blame, and the members meet anew


class Meets(Protocol):
    """A meeting, as the sentry asks it."""

    @property
    def sheet(self) -> Sheet | None:
        """The last roll."""

    @property
    def clique(self) -> object:
        """Its clique."""


class Sentry:
    """Watches the other members.

    Args:
        board: What the members write for each other; a connection of its own.
        life: This run of this process.
        meeting: The meeting.
        patience: How long it waits.
        lost: Ends this process, since the board has been out of reach for too long: the others go on without it.

    Attributes:
        breaker: Breaks off a wait that cannot be interrupted.
        wanted: Set when the members must meet: somebody is lost, or has called.
    """

    def __init__(
        self, board: Board, life: Life, meeting: Meets, patience: Patience, lost: Callable[[MeetingError], object]
    ):
        self.wanted = threading.Event()
        self.breaker = Breaker()
        self._board, self._life, self._meeting, self._patience = board, life, meeting, patience
        self._watch, self._lost = Watch(), lost
        self._awake, self._stopped = threading.Event(), threading.Event()
        self._works_since: float | None = None
        self._waiting: frozenset[Life] = frozenset()
        self._told: set[Life] = set()
        self._thread = StoppedAtEnd("replicax-sentry", self._run, stop=self._ask_to_stop)
        self._thread.start()

    # For the thread that trains.

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """In the block the thread that trains may wait for other members, and is interrupted if one is lost."""
        self._works_since = time.monotonic()
        try:
            yield
        finally:
            self._works_since = None

    def pause(self) -> None:
        """Interrupts nothing from now on: the members meet. It goes on looking for signs of life."""
        self._awake.clear()
        self._works_since = None

    def resume(self) -> None:
        """Watches the members of the last roll from now on."""
        self.wanted.clear()
        self._awake.set()

    def call(self, why: str) -> None:
        """Asks all members to meet."""
        sheet = self._meeting.sheet
        if sheet is not None:
            self._board.call(sheet.number, why)

    def somebody_knocks(self) -> bool:
        """Returns whether a newcomer waits."""
        sheet = self._meeting.sheet  # It may be newer than the last look, and name those who waited then.
        return sheet is not None and not self._waiting.issubset(sheet.lives)

    def tell_done(self) -> None:
        """Tells the others that this process's script has ended."""
        if self._meeting.sheet is not None:
            self._board.tell_done(self._meeting.sheet.number, self._life.index)

    def others_run(self) -> bool:
        """Returns whether the script of another member is still running."""
        sheet = self._meeting.sheet
        if sheet is None:
            return False
        done, gone = self._board.done(sheet.number), self._board.gone()
        return any(life.index not in done and life not in gone for life in sheet.lives if life != self._life)

    def stop(self) -> None:
        """Ends the thread."""
        self._thread.stop(self._patience.end)

    def _ask_to_stop(self) -> None:
        self._stopped.set()
        self._awake.set()

    # The thread.

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except MeetingError as error:
                if not self._stopped.is_set():
                    self._lost(error)
                return
            except jax.errors.JaxRuntimeError:
                _log.exception("The sentry could not read the board of the meeting; it goes on.")
                time.sleep(self._patience.again)

    def _look(self) -> None:
        sheet = self._meeting.sheet
        if sheet is None:
            self._stopped.wait(self._patience.again)
            return
        called = self._board.called(sheet.number, self._patience.again)
        view = self._view(sheet)
        lost = [life for life in sheet.lives if not view.is_up(life)]
        # A newcomer waits if it has come, is up, and no roll has named it.
        self._waiting = frozenset(life for life in view.ready(sheet) if life not in sheet.lives)
        if next(filter(view.is_up, sheet.lives), None) == self._life:  # One of them is enough.
            self._tell_of_silent_newcomers({life for life in view.silent if not view.is_over(life)} - {*sheet.lives})
        late = self._seconds_in_call() > max(_SECONDS_IN_A_CALL, self._patience.stall)
        self._board.suspect(sheet.number, (life for life in lost if life in view.silent))
        if (lost or late) and called is None:
            self._board.call(sheet.number, f"{lost} are lost" if lost else "a call takes too long")
        if not self._awake.is_set():  # The members meet, and learn from here who gives no sign of life.
            self._stopped.wait(self._patience.again)
            return
        if not (lost or late or called is not None) or sheet is not self._meeting.sheet:
            return
        self.wanted.set()
        self._interrupt(sheet)

    def _tell_of_silent_newcomers(self, lives: set[Life]) -> None:
        """Lets the launcher end those that are stopped or cut off before they take part; nobody waits for them."""
        for life in lives - self._told:
            tell_launcher({"silent": f"worker {life.index}", "life": life.number})
        self._told |= lives

    def _interrupt(self, sheet: Sheet) -> None:
        """Interrupts collectives of the thread that trains until the members meet: it may begin another one."""
        began = time.monotonic()
        while self._awake.is_set() and not self._stopped.is_set() and self._meeting.sheet is sheet:
            interrupt: Callable[[], bool] | None = getattr(self._meeting.clique, "interrupt", None)
            if interrupt is not None and self._works_since is not None:
                interrupt()
            if time.monotonic() - began > _SECONDS_TO_FAIL:
                self.breaker.break_off()
            self._stopped.wait(_SECONDS_BETWEEN_INTERRUPTS)

    def _view(self, sheet: Sheet) -> View:
        beats, notes, newest = self._board.beats(), self._board.notes(), self._board.newest()
        others = {*sheet.lives, *newest.values()} - {self._life}
        silent = self._watch.silent(others, beats, float("inf"), self._patience.silence)
        if self._seconds_in_call() > self._patience.stall:
            silent |= self._late(sheet, beats)
        return View(newest, self._board.gone(), silent, notes)

    def _late(self, sheet: Sheet, beats: dict[Life, bytes]) -> set[Life]:
        """Returns the members for which this one waits in vain: alive, they do nothing, and do not come to it.

        One that compiles or saves does something, and so does one that comes from call to call.
        """
        if now.at[0] not in WAITING_PHASES:
            return set()
        away = {life for life in sheet.lives if life != self._life and not _is_in_call(beats.get(life, b""))}
        return self._watch.silent(away, beats, self._patience.stall, self._patience.silence)

    def _seconds_in_call(self) -> float:
        since = self._works_since
        return 0.0 if since is None else time.monotonic() - since


def _is_in_call(beat: bytes) -> bool:
    doing = beat.partition(b":")[2].decode(errors="replace")
    return doing.partition(" ")[0] in WAITING_PHASES
