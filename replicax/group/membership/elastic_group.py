"""The group of an elastic job: workers come and go, and nobody starts again.

Each set of members is a *world*. It has an XLA client of its own, which takes the place of JAX's: `jax.devices()` and
`jax.process_index()` are those of the present world. When a member is lost, or a newcomer waits, the members meet, and
a new world begins; their processes go on.

The members make *calls* together: a step of training, a sum, a checkpoint. All of them make the same calls in
the same order. A call makes at most one program run that changes variables, through `ElasticGroup.executed`. A call
that a loss breaks off has changed nothing, and is made again in the next world. If another member has completed it, its
outcome is taken over from there.

A newcomer is in a world of its own until it is taken in: at a boundary between calls, where a member knows what its
script does next, and gives all its state.

The methods here are called by the thread that trains. `interrupter.CollectiveInterrupter` watches meanwhile in a thread
of its own.
"""

from __future__ import annotations

import collections
import gc
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

import numpy as np

import replicax.cluster.exchange as exchange
import replicax.runtime.activity as activity
from replicax.cluster.patience import Patience
from replicax.compat.jax_worlds import WorldClique, install_alone, is_lost_connection
from replicax.contracts.group import ALONE, Ballot, Group, Incarnation, State, World
from replicax.errors import MeetingError, NotJoinedError
from replicax.errors.exit_codes import ExitCode
from replicax.group.membership.elastic_meeting import BegunError, ElasticMeeting
from replicax.group.membership.interrupted_wait import WaitInterruptedError
from replicax.group.membership.interrupter import CollectiveInterrupter
from replicax.group.membership.launcher_news import tell_of_leaving, tell_of_world
from replicax.group.membership.meeting import MemberLostError, Quorum
from replicax.group.membership.places import ELSEWHERE, NOT_JOINED, Given, Place
from replicax.group.membership.preemption import JobBallot, Preemption
from replicax.group.membership.state_transfer import given, packed, take, unpacked
from replicax.group.renewal import renewed
from replicax.runtime.memory import give_freed_memory_back
from replicax.typing import PyTree

_T = TypeVar("_T")


class WorldChangedError(Exception):
    """The world has changed in the middle of a call, which must be made again."""


class ElasticGroup(Group):
    """A group whose members may be lost, and others come: its worlds, one after the other."""

    may_change = True

    def __init__(self, meeting: ElasticMeeting, interrupter: CollectiveInterrupter, fewest: int):
        super().__init__()
        self.preemption: Preemption | None = None  # what SIGTERM means; None if nothing decides it
        self._world = World(ALONE, 0, (meeting.index,), (meeting.names[meeting.index],))
        self._meeting, self._interrupter, self._fewest = meeting, interrupter, fewest
        self._outcomes = Outcomes()
        self._place = Place(is_new=True)
        self._is_busy = False
        self._leaving, self._has_left = "", False
        self._newcomer_warnings = NewcomerWarnings()
        self._not_taken: list[str] = []  # classes of states that others have given, and this script has not named

    # The beginning and the end.

    def begin(self, is_newcomer: bool) -> None:
        """Begins the first world: that of all workers, or, for a newcomer, one of its own."""
        if not is_newcomer:
            self._place = Place()
            try:
                self._meet(begins=True)
                return
            except BegunError:
                self._place = Place(is_new=True)
        install_alone()
        exchange.begin_anew(self._interrupter.wanted)

    @property
    def world(self) -> World:
        """The present members; a newcomer is alone."""
        return self._world

    @property
    def number(self) -> int:
        """The number of the present world."""
        return self._world.number

    @property
    def is_member(self) -> bool:
        return self._world.number != ALONE

    @property
    def came_later(self) -> bool:
        return not self.is_member or self.incarnation.number > 0

    def messages(self, own: bytes) -> list[bytes]:
        return exchange.exchanged(own)

    def offer(self, state: State | None) -> None:
        """Says what newcomers get besides the variables of strategies; None: nobody is taken in from now on."""
        self.state = state

    def join(self) -> bool:
        """Waits until the others take this newcomer in, and takes their state; a member goes on at once."""
        if not self.is_member:
            self._place = Place(is_new=True)
            self._meet()
            return True
        return False

    def finish(self) -> None:
        """Waits until all members' scripts have ended, since one that lags may need an outcome of this one's."""
        if not self.is_member or self._has_left:
            return
        self._interrupter.tell_done()
        while self._interrupter.others_run():
            if self._interrupter.wanted.wait(self._meeting.patience.again):
                self._place = self._here(is_done=True)
                self._meet()
                return  # Those who lag have the outcome now. They go on without this process.

    @property
    def calls(self) -> int:
        """How many calls have been completed: in all members the same at the same point of the script."""
        return self._outcomes.last

    def place(self) -> tuple[int, int]:
        """Returns the number of calls: one that has come later has made fewer programs run."""
        return self.calls, 0

    @property
    def incarnations(self) -> tuple[Incarnation, ...]:
        """The present members, each with the run of it that takes part; this process's own is `incarnation`."""
        record = self._meeting.record
        return () if record is None else record.incarnations

    @property
    def incarnation(self) -> Incarnation:
        """This run of this process."""
        return self._meeting.incarnation

    @property
    def may_leave(self) -> bool:
        """Whether enough others go on if this process leaves."""
        return self.is_member and len(self.world.members) > self._fewest

    def renewed(self, tree: PyTree) -> PyTree:
        return renewed(tree)

    def ballot(self, patience: Patience, closed: threading.Event) -> Ballot:
        """Returns where the members vote when all of them are to end."""
        assert self.preemption is not None  # `opening.open_group` has made it.
        return JobBallot(self.preemption, self, patience, closed)

    def leave_soon(self, reason: str) -> None:
        """Lets this process leave between two calls, and end: the others go on without it. For signal handlers."""
        self._leaving = reason

    def leave(self) -> None:
        """Leaves: the others go on without this process."""
        self._meeting.leave()
        self._interrupter.stop()

    # Calls.

    def attempt(self, call: Callable[[], _T]) -> _T:
        if self._is_busy:
            return call()
        if self._interrupter.somebody_knocks():
            self._newcomer_warnings.refused(self.state is not None)
        self._is_busy = True
        try:
            while True:
                try:
                    self._leave_if_told()
                    if self._interrupter.wanted.is_set():
                        self._change(executes=False)
                    with self._interrupter.working():
                        return call()
                except WorldChangedError:
                    continue
                except Exception as error:
                    if not self._is_loss(error):
                        raise
                    self._change(executes=False)
        finally:
            self._is_busy = False

    def executed(
        self,
        run: Callable[[], _T],
        outcome_of: Callable[[_T], list[np.ndarray]],
        adopted: Callable[[list[np.ndarray]], _T],
        nbytes: int = 0,
    ) -> _T:
        """Returns what `run` returns, or what `adopted` makes of the outcome of a member that has completed it."""
        if not self.is_member:
            raise NotJoinedError(NOT_JOINED)
        if self._not_taken:
            raise NotJoinedError(ELSEWHERE.format(kind=self._not_taken[0], own=type(self.state).__name__))
        found: list[np.ndarray] | None = None
        try:
            result = run()
        except Exception as error:
            if not self._is_loss(error):
                raise
            found = self._change(executes=True)
            if found is None:
                raise WorldChangedError from None
            result = adopted(found)
        self._outcomes.add(lambda: outcome_of(result), nbytes)
        return result

    def wait(self, values: object) -> None:
        """Waits until arrays are computed; raises a `RuntimeError` if a member is lost meanwhile."""
        try:
            self._interrupter.breaker.wait(values)
        except WaitInterruptedError:
            cast(WorldClique, self._meeting.clique).leave_behind()
            raise

    def boundary(self, *places: object) -> None:
        """Takes newcomers in, if any wait, between two calls: this process can give its state here."""
        if self._is_busy or not self.is_member:
            return
        knocks = self._interrupter.somebody_knocks()
        if not knocks:
            self._newcomer_warnings.answered()
        if not knocks and not self._interrupter.wanted.is_set():
            return
        if self.state is None or not self.state.is_boundary(places):
            if knocks:
                self._newcomer_warnings.refused(self.state is not None)
            return
        self._interrupter.call("a worker joins")
        self._place = self._here(gives=True)
        self._meet()

    def _leave_if_told(self) -> None:
        """Ends this process if it was told to, and enough others go on without it."""
        if not self._leaving or not self.may_leave:
            return
        incarnation = self._meeting.incarnation
        tell_of_leaving(incarnation, self._leaving)
        self._interrupter.call(f"{self._meeting.names[incarnation.index]} leaves: {self._leaving}")
        self.leave()
        self._has_left = True
        raise SystemExit(ExitCode.RESUME)

    def _is_loss(self, error: Exception) -> bool:
        return self._interrupter.wanted.is_set() or is_lost_connection(error) or isinstance(error, exchange.ClosedError)

    # A new world.

    def _change(self, executes: bool) -> list[np.ndarray] | None:
        self._interrupter.call("a worker is lost")
        self._place = self._here(executes=executes)
        return self._meet()

    def _here(self, executes: bool = False, gives: bool = False, is_done: bool = False) -> Place:
        return Place(self._outcomes.last, executes, gives, False, is_done, self._outcomes.first)

    def _meet(self, begins: bool = False) -> list[np.ndarray] | None:
        """Begins the next world; returns the outcome of the call in whose middle this process was, None without one."""
        self._interrupter.pause()
        is_new = self._place.is_new
        while True:
            quorum = self._meeting.gather("a new world", self._place.written(), begins)
            self._check_number(quorum)
            places = [Place.of(note) for note in quorum.notes]
            try:
                found = self._agreed(quorum, places)
                break
            except MemberLostError:
                continue
        if is_new:
            self._outcomes.begin_at(found.calls)
        self._install(quorum, places)
        if found.state is not None:
            self._not_taken = take(self._states(), *found.state)
        return found.outcome

    def _check_number(self, quorum: Quorum) -> None:
        if len(quorum.present) < self._fewest:
            left = ", ".join(self._names(quorum))
            raise MeetingError(
                f"Only {len(quorum.present)} workers are left ({left}), and the training goes on with at least "
                f"{self._fewest}. Start the job again; it goes on from its newest checkpoint."
            )

    @activity.phase(activity.CHECKPOINT)  # Between the sums: one that reads or lays out much is not stuck.
    def _agreed(self, quorum: Quorum, places: Sequence[Place]) -> Given:
        """Connects the members, and hands on what some of them lack: the outcome of a call, or all the state."""
        own = quorum.present.index(self._meeting.index)
        if len(quorum.present) == 1:
            return Given()
        self._meeting.total_of_vectors(quorum, [np.zeros(1, np.uint32)], "connected")
        latest = max(place.calls for place in places)
        outcome = None
        for number in sorted({place.calls + 1 for place in places if place.executes and place.calls < latest}):
            giver = self._owner(number, places, quorum)
            found, _ = unpacked(self._sent(quorum, packed(self._outcomes.of(number)) if giver == own else None))
            if self._place.executes and self._outcomes.last == number - 1:
                outcome = found
        if not any(place.is_new for place in places):
            return Given(outcome)
        giver = next(i for i, place in enumerate(places) if place.gives)
        state = unpacked(self._sent(quorum, packed(*given(self._states())) if giver == own else None))
        return Given(outcome, state if self._place.is_new else None, places[giver].calls)

    def _owner(self, number: int, places: Sequence[Place], quorum: Quorum) -> int:
        """Returns the place on the quorum of a member that has the outcome of a call."""
        for i, place in enumerate(places):
            if place.kept <= number <= place.calls:
                return i
        raise MeetingError(
            f"A worker was interrupted in call {number}, which others have completed, and none of "
            f"{', '.join(self._names(quorum))} has its outcome any more. Start the job again; it goes on from its "
            "newest checkpoint."
        )

    def _states(self) -> list[State]:
        assert self.state is not None  # Only those give or take it who have said what.
        return [*self.always, self.state]

    def _sent(self, quorum: Quorum, vector: np.ndarray | None) -> np.ndarray:
        """Returns in every member the bytes that one of them sends."""
        length = np.array([0 if vector is None else vector.size], np.uint32)
        (size,) = self._meeting.total_of_vectors(quorum, [length], "length")
        own = np.zeros(int(size[0]), np.uint8) if vector is None else vector
        (found,) = self._meeting.total_of_vectors(quorum, [own], f"{own.size} bytes")
        return found

    def _install(self, quorum: Quorum, places: Sequence[Place]) -> None:
        if len(quorum.present) == 1:
            install_alone()
        else:
            cast(WorldClique, self._meeting.clique).install()
        tell_of_world(quorum.number, self.incarnations, quorum.present.index(self._meeting.index))
        newcomers = tuple(index for index, place in zip(quorum.present, places, strict=True) if place.is_new)
        index = quorum.present.index(self._meeting.index)
        self._world = World(quorum.number, index, quorum.present, self._names(quorum), newcomers)
        if _are_level(places):  # Arrays of earlier worlds keep their devices, and these their threads.
            self._outcomes.forget()
        self._place = self._here()
        self._interrupter.resume()
        exchange.begin_anew(self._interrupter.wanted)
        for change in self.changes:
            change()
        gc.collect()  # Programs and devices of the last world refer to each other, and its threads live with them.
        give_freed_memory_back()  # It is in pieces, and the next world's programs would need more beside it.

    def _names(self, quorum: Quorum) -> tuple[str, ...]:
        return tuple(self._meeting.names[index] for index in quorum.present)


def _are_level(places: Sequence[Place]) -> bool:
    """Returns whether all members have completed the same calls, when they have taken the outcomes that they lacked."""
    latest = max(place.calls for place in places)
    return all(place.is_new or place.calls + (place.executes and place.calls < latest) == latest for place in places)


_SECONDS_TO_WAIT = 60.0  # until a warning
_NOTHING_NAMED = (
    "A worker waits to join this job, and the script has not said what it is to get. Call "
    "strategy.join(rx.Checkpoint(model=model, optimizer=optimizer, data=dataset)) before the training loop, or "
    "CheckpointManager.restore_or_initialize(); Model.fit does so by itself."
)
_NO_PLACE = (
    "A worker has waited for {seconds:.0f} s to join this job. Newcomers come in where the loop asks for the next "
    "batch of the first dataset or iterator in the rx.Checkpoint that strategy.join was given, and it did not. Is the "
    "dataset that the loop reads in that checkpoint? A loop without one calls strategy.join(checkpoint) before each "
    "step."
)


class NewcomerWarnings:
    """Warns, once each, of newcomers who wait in vain."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._since: float | None = None
        self._warned: set[str] = set()

    def refused(self, is_named: bool) -> None:
        """Notes that a newcomer waits and is not taken in here."""
        now = self._clock()
        self._since = now if self._since is None else self._since
        if not is_named:
            self._warn(_NOTHING_NAMED)
        elif now - self._since > _SECONDS_TO_WAIT:
            self._warn(_NO_PLACE.format(seconds=_SECONDS_TO_WAIT))

    def answered(self) -> None:
        """Notes that no newcomer waits any more."""
        self._since = None

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warnings.warn(text, stacklevel=4)


_SMALL = 1 << 20  # bytes that may always be kept


class Outcomes:
    """The outcomes of the last calls, for a member that was interrupted in the middle of one of them."""

    def __init__(self) -> None:
        self.last = 0  # the number of the last call; calls are counted from 1
        self._kept: collections.deque[tuple[Callable[[], list[np.ndarray]], int]] = collections.deque()
        self._bytes = 0

    def add(self, outcome: Callable[[], list[np.ndarray]], nbytes: int) -> None:
        """Keeps the outcome of the next call."""
        self.last += 1
        self._kept.append((outcome, nbytes))
        self._bytes += nbytes
        # A member may be several calls ahead of another one, if those after a sum need no other member: a step that has
        # ended here and not there, and then a program that counts. The outcomes before the last one are kept while they
        # are no larger together than the largest: none makes a second large call while another still makes the first.
        while self._bytes - nbytes > max(_SMALL, max(size for _, size in self._kept)):
            self._bytes -= self._kept.popleft()[1]

    def begin_at(self, last: int) -> None:
        """Goes on after call `last`, which another process has made."""
        self.last = last
        self.forget()

    def forget(self) -> None:
        """Forgets all outcomes: every member has completed the last call."""
        self._bytes = 0
        self._kept.clear()

    @property
    def first(self) -> int:
        """The number of the first call whose outcome is still here; `last + 1` if there is none."""
        return self.last + 1 - len(self._kept)

    def of(self, number: int) -> list[np.ndarray]:
        """Returns the outcome of a call that is still here."""
        return self._kept[number - self.first][0]()
