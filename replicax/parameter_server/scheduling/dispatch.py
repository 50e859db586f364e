"""What follows from whatever happens: a state and its transitions. Nothing here waits, talks to anybody, or looks at a
clock; the scheduler does what is decided here."""

from __future__ import annotations

import collections
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

from replicax.errors import CancelledError, ClusterTimeoutError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import Done, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.policy import Ledger
from replicax.parameter_server.scheduling.watch import SERVER, WORKER, Watch, Who

_MOST_LOST_WORKERS = 10  # A function that kills whoever runs it must not go on for ever.


class Gone(NamedTuple):
    """The answer of an actor that there is no more.

    Attributes:
        why: What Ray says.
    """

    why: str


class Failed(NamedTuple):
    """The answer of a step that raised an error.

    Attributes:
        error: The error.
    """

    error: BaseException


class Attempt(NamedTuple):
    """A step that a worker was given.

    Attributes:
        worker: The worker.
        life: Which life of it.
        closure: The step.
        number: Number of the attempt; answers to earlier ones count no more.
    """

    worker: int
    life: int
    closure: Any
    number: int


class Send(NamedTuple):
    """Give a step to a worker."""

    attempt: Attempt


class Retrace(NamedTuple):
    """Compile a step for the batch that the worker has in this iterator."""

    attempt: Attempt
    iterator: int


class Ping(NamedTuple):
    """Ask an actor for a sign of life."""

    who: Who
    life: int


class Start(NamedTuple):
    """Start a worker in the place of the one that there was."""

    who: Who
    life: int


class End(NamedTuple):
    """Kill an actor that hangs."""

    who: Who
    life: int
    why: str


class Recover(NamedTuple):
    """Replace lost servers and give all variables the values of the newest checkpoint."""

    reason: str


class Dispatch:
    """Who does what when, in a training whose workers and servers may be lost at any time.

    After each call `take_actions` returns what is to be done. Whoever does it tells what came of it.

    Args:
        ledger: Decides who gets which step.
        watch: Decides who has gone or hangs.
        longest_without: How many seconds steps wait while no worker is up, before that is an error.

    Attributes:
        now: The time, set by the caller.
        error: The first error since it was raised last.
        fatal: Why nothing can be run any more.
        recovering: Why servers have to be recovered, if they have.
    """

    def __init__(self, ledger: Ledger, watch: Watch, longest_without: float):
        self.ledger, self.watch, self._longest_without = ledger, watch, longest_without
        self.now = 0.0
        self.error: BaseException | None = None
        self.fatal: BaseException | None = None
        self.recovering = ""
        self._recovery_began = False
        self._attempts: dict[Any, Attempt] = {}
        self._number = 0
        self._retracing: set[Any] = set()
        self._quiet: collections.Counter[Hashable] = collections.Counter()
        self._awaiting: set[Hashable] = set()
        self._last_with_worker = 0.0
        self._actions: list[Any] = []

    def take_actions(self) -> list[Any]:
        """Returns what is to be done now."""
        self._hand_out()
        actions, self._actions = self._actions, []
        return actions

    # What is asked for.

    def add(self, closure: Any) -> None:
        """Takes a step."""
        if self.is_idle:
            self._last_with_worker = self.now
        self.ledger.add(closure)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or under way."""
        return self.ledger.queued == 0 and self.ledger.under_way == 0

    def is_quiet(self, for_helper: bool) -> bool:
        """Whether nothing is under way; what the helper itself does is no matter to it."""
        recovers = self._recovery_began and not for_helper
        return self.ledger.under_way == len(self._retracing) and not recovers

    def begin_quiet(self, owner: Hashable) -> None:
        """Lets nothing begin, until `end_quiet`."""
        self._quiet[owner] += 1

    def end_quiet(self, owner: Hashable) -> None:
        """Lets things begin again."""
        self._quiet[owner] -= 1
        self._quiet += collections.Counter()  # drops zeros

    def want_recovery(self, reason: str, owner: Hashable) -> None:
        """Notes that somebody waits for lost servers to be recovered."""
        self.recovering = self.recovering or reason
        self._awaiting.add(owner)

    def wants_no_more(self, owner: Hashable) -> None:
        """Notes that somebody waits for it no more."""
        self._awaiting.discard(owner)

    # What has happened.

    def ticks(self) -> None:
        """Looks for what is overdue."""
        if self.ledger.ready or self._quiet or not self.ledger.queued:
            self._last_with_worker = self.now
        elif self.now - self._last_with_worker > self._longest_without:
            self._last_with_worker = self.now
            self._nobody_came()
        for who in self.watch.never_ended(self.now):
            self.goes(who, self.watch.life(who), "")
        for who, why in self.watch.hung(self.now).items():
            self._actions.append(End(who, self.watch.life(who), why))
            self.watch.is_ended(who, why, self.now)
            if who.job == WORKER:
                self.ledger.worker_away(who.number)
        if self.fatal is not None:
            return
        for who in self.watch.to_start(self.now):
            self._actions.append(Start(who, self.watch.begins(who, self.now)))
        for who in self.watch.to_ping(self.now):
            self.watch.asked(who, self.now)
            self._actions.append(Ping(who, self.watch.life(who)))

    def started(self, who: Who, life: int, goal: int) -> None:
        """Notes that a worker was started, and told so many things to do before it is up."""
        self.watch.has_goal(who, life, goal)

    def server_starts(self, server: int) -> None:
        """Notes that a server is there, or will be at once."""
        self.watch.begins(Who(SERVER, server), self.now)

    def answers(self, who: Who, life: int, done: int) -> None:
        """Notes the answer to a ping."""
        if self.watch.answers(who, life, done, self.now) and who.job == WORKER:
            self.ledger.worker_ready(who.number)

    def goes(self, who: Who, life: int, why: str) -> None:
        """Notes that an actor has gone."""
        if not self.watch.goes(who, life, why, self.now):
            return
        if who.job == WORKER:
            self._lose(who.number, why)
        else:
            self.recovering = self.recovering or f"{who} has gone. {why}"

    def answered(self, attempt: Attempt, answer: Done | UnexpectedBatch | ServerLost | Failed | Gone) -> bool:
        """Notes what came of a step; returns whether it is through with a result."""
        if self._attempts.get(attempt.closure) != attempt:
            return False  # It was taken away from the worker, which has been lost.
        if isinstance(answer, Gone):
            self.goes(Who(WORKER, attempt.worker), attempt.life, answer.why)
            return False
        if isinstance(answer, UnexpectedBatch):
            self._retracing.add(attempt.closure)
            self._actions.append(Retrace(attempt, answer.iterator))
            return False
        if isinstance(answer, ServerLost):
            self._put_back(attempt)
            self.recovering = self.recovering or answer.reason
        else:
            self._finish(attempt)
        self._notes_progress(attempt.worker)
        if isinstance(answer, Failed):
            self._fail(attempt.closure, answer.error)
        return isinstance(answer, Done)

    def retraced(self, attempt: Attempt, error: BaseException | None) -> None:
        """Notes that a step has been compiled for its batch, or could not be."""
        if self._attempts.get(attempt.closure) != attempt:
            return
        self._retracing.discard(attempt.closure)
        self._notes_progress(attempt.worker)
        if isinstance(error, ParameterServerLost):
            self._put_back(attempt)
            self.recovering = self.recovering or str(error)
        elif isinstance(error, WorkerLostError):
            self._put_back(attempt)  # The watch will hear of it, too.
        elif error is not None:
            self._finish(attempt)
            self._fail(attempt.closure, error)
        elif self.error is not None or self._quiet or self.recovering:
            self._put_back(attempt)
        else:
            self._send(attempt.worker, attempt.closure)

    def recovered(self, error: BaseException | None) -> None:
        """Notes that lost servers have been replaced, or cannot be."""
        self.recovering, self._recovery_began = "", False
        if error is not None:
            self.give_up(error)
        elif lost := self.watch.lost_servers():  # while the others were being replaced
            self.recovering = f"{', '.join(map(str, lost))} has gone."

    def give_up(self, error: BaseException) -> None:
        """Lets nothing be run any more: every waiting call raises the error."""
        self.fatal = self.fatal or error
        self.recovering = ""
        self._cancel(_cancelled_by(error), under_way=True)

    # Steps.

    def _hand_out(self) -> None:
        if self.error is not None:
            self._cancel(_after(self.error))  # What a lost worker had is in the queue again.
        if self.fatal is not None:
            return
        if self.recovering:
            # Whoever holds the quiet may go on reading and writing variables, unless it waits for the recovery itself.
            if self.ledger.under_way == 0 and not self._recovery_began and self._quiet.keys() <= self._awaiting:
                self._recovery_began = True
                self._actions.append(Recover(self.recovering))
            return
        if self._quiet:
            return
        for worker, closure in self.ledger.assignments():
            self._send(worker, closure)

    def _send(self, worker: int, closure: Any) -> None:
        who = Who(WORKER, worker)
        self._number += 1
        attempt = self._attempts[closure] = Attempt(worker, self.watch.life(who), closure, self._number)
        self.watch.has_work(who, self.now)
        self._actions.append(Send(attempt))

    def _notes_progress(self, worker: int) -> None:
        self.watch.gets_on(Who(WORKER, worker), self.now, bool(self.ledger.held_by(worker)))

    def _finish(self, attempt: Attempt) -> None:
        del self._attempts[attempt.closure]
        self.ledger.finished(attempt.worker, attempt.closure)

    def _put_back(self, attempt: Attempt) -> None:
        del self._attempts[attempt.closure]
        self.ledger.put_back(attempt.worker, attempt.closure)

    def _lose(self, worker: int, why: str) -> None:
        lost = self.ledger.worker_lost(worker)
        for closure in lost:
            closure.lost_workers += 1
            self._retracing.discard(closure)
            del self._attempts[closure]
        deadly = next((closure for closure in lost if closure.lost_workers >= _MOST_LOST_WORKERS), None)
        if deadly is not None:
            self.ledger.remove(deadly)
            self._fail(deadly, WorkerLostError(
                f"{deadly.name} was given to {_MOST_LOST_WORKERS} workers, and each of them was lost while it had it. "
                f"The last time it was: {why}"
            ))  # fmt: skip

    # Errors.

    def _nobody_came(self) -> None:
        workers = [str(who) for who in self.watch.all_of(WORKER)]
        error = ClusterTimeoutError(
            "the coordinator", self._longest_without, workers, "the Ray cluster", f": {self.watch.told()}"
        )
        self.error = self.error or error

    def _fail(self, closure: Any, error: BaseException) -> None:
        """Notes the error of a closure; what is queued is cancelled, and the first error is kept."""
        closure.value._fail(error)
        if self.error is None:
            self.error = error
        self._cancel(_after(error))

    def _cancel(self, error: CancelledError, under_way: bool = False) -> None:
        closures: Iterable[Any] = self.ledger.cancel_queued()
        if under_way:
            closures = [*closures, *self._attempts]
        for closure in closures:
            if not closure.value.is_ready:
                closure.value._fail(error)


def _after(error: BaseException) -> CancelledError:
    return CancelledError(f"This function was not run, because another one failed before it: {error!r}")


def _cancelled_by(error: BaseException) -> CancelledError:
    return error if isinstance(error, CancelledError) else CancelledError(f"Training cannot go on: {error!r}")
