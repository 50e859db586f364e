"""A thread that notices losses and newcomers while the thread that trains computes, and interrupts its collectives."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import jax

from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.launcher_messages import tell_launcher
from replicax.group.membership.heartbeat import Watch
from replicax.group.membership.interrupted_wait import WaitInterrupter
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.quorum import QuorumRecord, View
from replicax.runtime.activity import WAITING_PHASES, now
from replicax.runtime.threads import StoppedAtEnd

_log = logging.getLogger(__name__)
_SECONDS_BETWEEN_INTERRUPTS = 0.05  # of the thread that trains, until it meets the others
_SECONDS_TO_FAIL = 1.0  # that a collective of this process has when its connections are shut down


class Meets(Protocol):
    """A meeting, as the interrupter asks it."""

    @property
    def record(self) -> QuorumRecord | None:
        """The last quorum."""

    @property
    def clique(self) -> object:
        """Its clique."""


class CollectiveInterrupter:
    """Watches the other members, over a connection of its own with the job store."""

    def __init__(
        self,
        job_store: JobStore,
        incarnation: Incarnation,
        meeting: Meets,
        patience: Patience,
        lost: Callable[[MeetingError], object],
        longest_call_s: float = 1800.0,  # after which nobody is to blame, and the members meet anew
    ):
        self.wanted = threading.Event()  # set when the members must meet: one is lost, or has called
        self.breaker = WaitInterrupter()  # for a wait that cannot be interrupted
        self._job_store, self._incarnation, self._meeting, self._patience = job_store, incarnation, meeting, patience
        self._watch, self._lost = Watch(), lost
        self._longest_call_s = max(longest_call_s, patience.stall)
        self._awake, self._stopped = threading.Event(), threading.Event()
        self._works_since: float | None = None
        self._waiting: frozenset[Incarnation] = frozenset()
        self._told: set[Incarnation] = set()
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
        """Watches the members of the last quorum from now on."""
        self.wanted.clear()
        self._awake.set()

    def call(self, why: str) -> None:
        """Asks all members to meet."""
        record = self._meeting.record
        if record is not None:
            self._job_store.call(record.number, why)

    def somebody_knocks(self) -> bool:
        """Returns whether a newcomer waits."""
        record = self._meeting.record  # It may be newer than the last look, and name those who waited then.
        return record is not None and not self._waiting.issubset(record.incarnations)

    def tell_done(self) -> None:
        """Tells the others that this process's script has ended."""
        if self._meeting.record is not None:
            self._job_store.tell_done(self._meeting.record.number, self._incarnation.index)

    def others_run(self) -> bool:
        """Returns whether the script of another member is still running."""
        record = self._meeting.record
        if record is None:
            return False
        done, gone = self._job_store.done(record.number), self._job_store.gone()
        return any(
            incarnation.index not in done and incarnation not in gone
            for incarnation in record.incarnations
            if incarnation != self._incarnation
        )

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
                    # The job store was out of reach for too long: this process ends, and the others go on without it.
                    self._lost(error)
                return
            except jax.errors.JaxRuntimeError:
                _log.exception("The interrupter could not read the job store; it goes on.")
                time.sleep(self._patience.again)

    def _look(self) -> None:
        record = self._meeting.record
        if record is None:
            self._stopped.wait(self._patience.again)
            return
        called = self._job_store.called(record.number, self._patience.again)
        view = self._view(record)
        lost = [incarnation for incarnation in record.incarnations if not view.is_up(incarnation)]
        # A newcomer waits if it has come, is up, and no quorum has named it.
        self._waiting = frozenset(
            incarnation for incarnation in view.ready(record) if incarnation not in record.incarnations
        )
        if next(filter(view.is_up, record.incarnations), None) == self._incarnation:  # One of them is enough.
            self._tell_of_silent_newcomers(
                {incarnation for incarnation in view.silent if not view.is_over(incarnation)} - {*record.incarnations}
            )
        late = self._seconds_in_call() > self._longest_call_s
        self._job_store.suspect(record.number, (incarnation for incarnation in lost if incarnation in view.silent))
        if (lost or late) and called is None:
            self._job_store.call(record.number, f"{lost} are lost" if lost else "a call takes too long")
        if not self._awake.is_set():  # The members meet, and learn from here who gives no sign of life.
            self._stopped.wait(self._patience.again)
            return
        if not (lost or late or called is not None) or record is not self._meeting.record:
            return
        self.wanted.set()
        self._interrupt(record)

    def _tell_of_silent_newcomers(self, incarnations: set[Incarnation]) -> None:
        """Lets the launcher end those that are stopped or cut off before they take part; nobody waits for them."""
        for incarnation in incarnations - self._told:
            tell_launcher({"silent": f"worker {incarnation.index}", "life": incarnation.number})
        self._told |= incarnations

    def _interrupt(self, record: QuorumRecord) -> None:
        """Interrupts collectives of the thread that trains until the members meet: it may begin another one."""
        began = time.monotonic()
        while self._awake.is_set() and not self._stopped.is_set() and self._meeting.record is record:
            interrupt: Callable[[], bool] | None = getattr(self._meeting.clique, "interrupt", None)
            if interrupt is not None and self._works_since is not None:
                interrupt()
            if time.monotonic() - began > _SECONDS_TO_FAIL:
                self.breaker.break_off()
            self._stopped.wait(_SECONDS_BETWEEN_INTERRUPTS)

    def _view(self, record: QuorumRecord) -> View:
        beats, notes, newest = self._job_store.beats(), self._job_store.notes(), self._job_store.newest()
        others = {*record.incarnations, *newest.values()} - {self._incarnation}
        silent = self._watch.silent(others, beats, float("inf"), self._patience.silence)
        if self._seconds_in_call() > self._patience.stall:
            silent |= self._late(record, beats)
        return View(newest, self._job_store.gone(), silent, notes)

    def _late(self, record: QuorumRecord, beats: dict[Incarnation, bytes]) -> set[Incarnation]:
        """Returns the members for which this one waits in vain: alive, they do nothing, and do not come to it."""
        if now.at[0] not in WAITING_PHASES:
            return set()
        away = {
            incarnation
            for incarnation in record.incarnations
            if incarnation != self._incarnation and not _is_in_call(beats.get(incarnation, b""))
        }
        # One that compiles or saves does something, and so does one that comes from call to call.
        return self._watch.silent(away, beats, self._patience.stall, self._patience.silence)

    def _seconds_in_call(self) -> float:
        since = self._works_since
        return 0.0 if since is None else time.monotonic() - since


def _is_in_call(beat: bytes) -> bool:
    doing = beat.partition(b":")[2].decode(errors="replace")
    return doing.partition(" ")[0] in WAITING_PHASES
