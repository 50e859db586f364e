"""Carries out the calls that the machine decides on, and reports what came of them."""

from __future__ import annotations

import functools
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeAlias

from replicax.parameter_server.actors.actor_errors import Raised, is_actor_lost, own_error
from replicax.parameter_server.actors.messages import Done, Report
from replicax.parameter_server.scheduling.actions import (
    Call,
    EndActor,
    GiveUpServers,
    PingActor,
    RecoverServers,
    RetraceStep,
    SendStep,
    StartWorker,
)
from replicax.parameter_server.scheduling.events import (
    ActorGone,
    Answer,
    Event,
    PingAnswered,
    Recovered,
    RecoveryInterrupted,
    Retraced,
    SchedulerFailed,
    ServerStarting,
    StepAnswered,
    StepFailed,
    WorkerGone,
    WorkerStarted,
)
from replicax.parameter_server.scheduling.handles import ServerIdentity, WorkerAnswer
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.recovery import ServersLostAgain
from replicax.parameter_server.scheduling.watch import SERVER, ActorId
from replicax.runtime.threads import StoppedAtEnd

#: Returns what has happened. The scheduler's thread calls it, since what it does may fail or take a moment.
Observation: TypeAlias = Callable[[], Event]


class ActorGroup(Protocol):
    """The actors of a training."""

    # Calls. `send`, `ping` and `drop_unused` run in the scheduler's own thread and return at once; the others may wait,
    # and run in other threads.

    def send(self, attempt: Attempt) -> Future[WorkerAnswer]:
        """Sends a closure to a worker; returns a future of its answer."""

    def ping(self, actor: ActorId, life: int) -> Future[Report] | Future[ServerIdentity] | None:
        """Asks an actor for a sign of life; returns None if this life of it is over."""

    def start(self, actor: ActorId, life: int) -> int:
        """Starts a worker, in the place of one that there may be; returns how much it has to do before it is up."""

    def end(self, actor: ActorId, life: int, why: str) -> None:
        """Kills an actor that hangs."""

    def retrace(self, attempt: Attempt, iterator: int) -> None:
        """Makes the closure's program for the batch that its worker has."""

    def recover(self, reason: str, lost: Sequence[int], starting: Callable[[int], None]) -> None:
        """Tries to replace lost servers while nothing is under way, or raises; tells of each that is being started."""

    def give_up_servers(self, error: BaseException) -> None:
        """Lets nobody wait for lost servers any more."""

    def drop_unused(self) -> None:
        """Lets workers and servers drop what nobody refers to any more."""

    # Notes, which are taken while the scheduler's state is locked.

    def note_idle(self) -> None:
        """Notes that all earlier updates have been applied."""

    def note_report(self, worker: int, report: Report) -> None:
        """Notes what a worker says of itself."""

    def set_result(self, attempt: Attempt, done: Done) -> None:
        """Makes what a worker has answered the result of the closure."""


class CallRunner:
    """Carries out calls: compiles and recovers in one helper thread; whatever else may wait has a thread of its own."""

    def __init__(self, actors: ActorGroup, observe: Callable[[Observation], None]):
        self._actors, self._observe = actors, observe
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._helper = StoppedAtEnd("replicax-scheduler-helper", self._help, stop=self.close)

    @property
    def helper(self) -> int | None:
        """The helper thread's id."""
        return self._helper.ident

    def start(self) -> None:
        """Starts the helper thread."""
        self._helper.start()

    def close(self) -> None:
        """Ends the helper thread, after what it is doing."""
        self._tasks.put(None)

    def run(self, call: Call) -> None:
        """Carries out a call, or begins to."""
        match call:
            case SendStep(attempt):
                self._send(attempt)
            case PingActor(actor, life):
                self._ping(actor, life)
            case StartWorker(actor, life):
                self._run_aside(functools.partial(self._start, actor, life))
            case EndActor(actor, life, why):
                self._run_aside(functools.partial(self._end, actor, life, why))
            case RetraceStep(attempt, iterator):
                self._tasks.put(functools.partial(self._retrace, attempt, iterator))
            case RecoverServers(reason, lost):
                self._tasks.put(functools.partial(self._recover, reason, lost))
            case GiveUpServers(error):
                self._actors.give_up_servers(error)

    def _send(self, attempt: Attempt) -> None:
        future = self._actors.send(attempt)
        future.add_done_callback(lambda future: self._observe(lambda: StepAnswered(attempt, _answer(future))))

    def _ping(self, actor: ActorId, life: int) -> None:
        future = self._actors.ping(actor, life)
        if future is not None:
            future.add_done_callback(lambda future: self._observe(lambda: _pinged(actor, life, future)))

    def _run_aside(self, task: Callable[[], Event]) -> None:
        def run() -> None:
            try:
                event = task()
            except BaseException as error:
                event = SchedulerFailed(error)
            self._observe(lambda: event)

        StoppedAtEnd("replicax-scheduler-aside", run).start()

    def _start(self, actor: ActorId, life: int) -> Event:
        try:
            return WorkerStarted(actor, life, self._actors.start(actor, life))
        except Exception as error:
            return ActorGone(actor, life, f"It cannot be started: {error}")

    def _end(self, actor: ActorId, life: int, why: str) -> Event:
        self._actors.end(actor, life, why)
        return ActorGone(actor, life, why)

    # In the helper thread.

    def _help(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _retrace(self, attempt: Attempt, iterator: int) -> None:
        error = _error_of(functools.partial(self._actors.retrace, attempt, iterator))
        self._observe(lambda: Retraced(attempt, error))

    def _recover(self, reason: str, lost: Sequence[int]) -> None:
        error = _error_of(functools.partial(self._actors.recover, reason, lost, self._server_starting))
        if isinstance(error, ServersLostAgain):
            event: Event = RecoveryInterrupted(error.error, error.lost)
        else:
            event = Recovered(error)
        self._observe(lambda: event)

    def _server_starting(self, server: int) -> None:
        self._observe(lambda: ServerStarting(ActorId(SERVER, server)))


def _error_of(task: Callable[[], None]) -> BaseException | None:
    try:
        task()
    except BaseException as error:
        return error
    return None


def _answer(future: Future[WorkerAnswer]) -> Answer:
    error = future.exception()
    if error is not None:
        return WorkerGone(str(error)) if is_actor_lost(error) else StepFailed(own_error(error))
    answer = future.result()
    return StepFailed(answer.error()) if isinstance(answer, Raised) else answer


def _pinged(actor: ActorId, life: int, future: Future[Report] | Future[ServerIdentity]) -> Event:
    if (error := future.exception()) is not None:
        return ActorGone(actor, life, str(error))
    answer = future.result()
    return PingAnswered(actor, life, answer if isinstance(answer, Report) else None)
