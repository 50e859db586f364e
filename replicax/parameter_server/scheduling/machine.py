"""The decisions of an asynchronous training: `next_state(state, event) -> (state, actions)`.

States, events and actions are values. Nothing here waits, talks to anybody, or looks at a clock; the scheduler carries
out what is decided here, and tells what came of it as further events.

```text
           a server is lost             nothing under way              Recovered(None)
 Serving ───────────────────► Draining ───────────────────► Recovering ────────────────► Serving
    │                            │                              │ Recovered(error), or interrupted too often
    └── SchedulerFailed ─────────┴──────────────────────────────┴──────────► Broken ── Closed ──► Ended
```

From each phase `Closed` leads to `Ended`. Closures are handed out while `Serving`, as long as no thread wants quiet and
there is no error that has not been raised yet.
"""

from __future__ import annotations

import dataclasses

from replicax.errors import CancelledError, ClusterTimeoutError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.actor_errors import closed
from replicax.parameter_server.actors.messages import Done, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.actions import (
    Action,
    EndActor,
    GiveUpServers,
    NoteIdle,
    NoteReport,
    PingActor,
    RecoverServers,
    RetraceStep,
    SendStep,
    SetError,
    SetResult,
    StartWorker,
)
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.events import (
    ActorGone,
    Answer,
    Closed,
    ErrorRaised,
    Event,
    PingAnswered,
    QuietBegan,
    QuietEnded,
    Recovered,
    RecoveryInterrupted,
    RecoveryWaitEnded,
    RecoveryWanted,
    Retraced,
    Scheduled,
    SchedulerFailed,
    ServerStarting,
    StepAnswered,
    StepFailed,
    Tick,
    WorkerGone,
    WorkerStarted,
)
from replicax.parameter_server.scheduling.ledger import Attempt
from replicax.parameter_server.scheduling.state import Broken, Draining, Ended, Recovering, SchedulerState, Serving
from replicax.parameter_server.scheduling.watch import WORKER, ActorId, Stage

_MOST_RECOVERIES = 10  # Servers may be lost while others are being replaced, but not forever.
_MOST_LOST_WORKERS = 10  # A function that kills whoever runs it must not go on forever.


def next_state(state: SchedulerState, event: Event) -> tuple[SchedulerState, tuple[Action, ...]]:
    """Returns the state after an event, and what is to be done.

    Example:
        >>> from replicax.parameter_server.actors.messages import Report
        >>> from replicax.parameter_server.scheduling.ledger import Ledger
        >>> from replicax.ray_cluster.deadline import PATIENCE
        >>> state = SchedulerState.of(Ledger.of(workers=1), servers=0, patience=PATIENCE)
        >>> state, actions = next_state(state, Tick(1.0))
        >>> actions
        (StartWorker(actor=ActorId(job='worker', index=0), life=1),)
        >>> worker = actions[0].actor
        >>> state, _ = next_state(state, WorkerStarted(worker, life=1, goal=0))
        >>> state, _ = next_state(state, PingAnswered(worker, 1, Report("node", 7, "cpu", set_up=0)))
        >>> state, actions = next_state(state, Scheduled("a step"))
        >>> actions[-1]
        SendStep(attempt=Attempt(id=0, worker=0, closure='a step'))
    """
    transition = _Transition(state)
    transition.take(event)
    transition.go_on()
    return transition.state, tuple(transition.actions)


class _Transition:
    """The working copy of one transition: the state and the actions so far."""

    def __init__(self, state: SchedulerState):
        self.state = state
        self.actions: list[Action] = []

    def take(self, event: Event) -> None:
        if self.state.is_ended and not isinstance(event, (Scheduled, ErrorRaised)):
            return
        match event:
            case StepAnswered(attempt, answer):
                if self.state.ledger.find(attempt) is not None:  # Else the worker was lost, and has it no more.
                    self._answered(attempt, answer)
            case Scheduled(closure):
                self._scheduled(closure)
            case Tick(now):
                self._tick(now)
            case PingAnswered():
                self._ping_answered(event)
            case WorkerStarted(actor, life, goal):
                self.state = self.state._replace(watch=self.state.watch.has_goal(actor, life, goal))
            case ServerStarting(actor):
                self.state = self.state._replace(watch=self.state.watch.starts(actor, self.state.now))
            case ActorGone(actor, life, why):
                self._gone(actor, life, why)
            case Retraced(attempt, error):
                if self.state.ledger.find(attempt) is not None:
                    self._retraced(attempt, error)
            case RecoveryWanted(thread, reason):
                self.state = self.state._replace(awaiting=self.state.awaiting | {thread})
                self.state = self.state.with_server_lost(reason)
            case RecoveryWaitEnded(thread):
                self.state = self.state._replace(awaiting=self.state.awaiting - {thread})
            case Recovered(None):
                if isinstance(self.state.phase, Recovering):
                    self.state = self.state.with_servers_recovered()
            case RecoveryInterrupted(error, lost):
                self._recover_again(error, lost)
            case Recovered(error) | SchedulerFailed(error):
                assert error is not None
                self._break(error)
            case QuietBegan(thread):
                self.state = self.state._replace(
                    quiet={**self.state.quiet, thread: self.state.quiet.get(thread, 0) + 1}
                )
            case QuietEnded(thread):
                quiet = {**self.state.quiet, thread: self.state.quiet[thread] - 1}
                self.state = self.state._replace(quiet={each: count for each, count in quiet.items() if count})
            case ErrorRaised():
                self.state = self.state._replace(error=None)
            case Closed():
                self._close()

    def go_on(self) -> None:
        """Begins what may begin in the state that there is now."""
        if self.state.error is not None:
            self._cancel_queue(self.state.error)  # The closures of a lost worker are in the queue again.
        state = self.state
        if isinstance(state.phase, Draining):
            # Whoever wants quiet may go on reading and writing variables, unless it waits for the recovery itself.
            if state.ledger.under_way == 0 and state.quiet.keys() <= state.awaiting:
                self.actions.append(RecoverServers(state.phase.reason))
                self.state = self.state._replace(phase=Recovering(state.now))
        elif isinstance(state.phase, Serving) and state.ledger.queued and not state.quiet:
            ledger, attempts = state.ledger.assign()
            self.state = self.state._replace(ledger=ledger)
            for attempt in attempts:
                self._send(attempt)

    # Actors.

    def _tick(self, now: float) -> None:
        self.state = self.state._replace(now=now)
        if isinstance(self.state.phase, Broken):
            return
        self._look_for_workers()
        for actor in self.state.watch.never_ended(now):
            self._gone(actor, self.state.watch[actor].life, "")
        for actor, why in self.state.watch.hung(now).items():
            self.actions.append(EndActor(actor, self.state.watch[actor].life, why))
            self.state = self.state._replace(watch=self.state.watch.ends(actor, why, now))
            if actor.job == WORKER:
                self.state = self.state._replace(ledger=self.state.ledger.worker_away(actor.index))
        for actor in self.state.watch.to_start(now):
            self.state = self.state._replace(watch=self.state.watch.starts(actor, now))
            self.actions.append(StartWorker(actor, self.state.watch[actor].life))
        for actor in self.state.watch.to_ping(now):
            self.state = self.state._replace(watch=self.state.watch.pinged(actor, now))
            self.actions.append(PingActor(actor, self.state.watch[actor].life))

    def _look_for_workers(self) -> None:
        state = self.state
        if state.ledger.ready or state.quiet or not state.ledger.queued:
            self.state = self.state._replace(workers_seen_at=state.now)
        elif state.now - state.workers_seen_at > state.longest_wait:
            workers = [str(actor) for actor in state.watch.workers()]
            absent = f": {state.watch.describe_absent()}"
            error = ClusterTimeoutError("the coordinator", state.longest_wait, workers, "the Ray cluster", absent)
            self.state = self.state._replace(workers_seen_at=state.now, error=state.error or error)

    def _ping_answered(self, event: PingAnswered) -> None:
        actor, life, report = event
        before = self.state.watch
        if not before.is_current(actor, life):
            return
        if report is not None:
            self.actions.append(NoteReport(actor.index, report))
        self.state = self.state._replace(
            watch=before.answers(actor, life, report.set_up if report else 0, self.state.now)
        )
        comes_up = self.state.watch[actor].stage is Stage.UP and before[actor].stage is not Stage.UP
        if comes_up and actor.job == WORKER:
            self.state = self.state._replace(ledger=self.state.ledger.worker_ready(actor.index))

    def _gone(self, actor: ActorId, life: int, why: str) -> None:
        if not self.state.watch.is_current(actor, life):
            return
        self.state = self.state._replace(watch=self.state.watch.goes(actor, life, why, self.state.now))
        if actor.job == WORKER:
            self._worker_lost(actor.index, why)
        else:
            self.state = self.state.with_server_lost(f"{actor} has gone. {why}")

    def _recover_again(self, error: ParameterServerLost, lost: tuple[int, ...]) -> None:
        """Tries once more to replace servers, unless that has been tried often or long enough."""
        phase, longest = self.state.phase, self.state.longest_wait
        if not isinstance(phase, Recovering):  # The training has ended meanwhile.
            self.actions.append(GiveUpServers(error))
            return
        if phase.tries < _MOST_RECOVERIES and self.state.now - phase.since <= longest:
            self.state = self.state._replace(phase=dataclasses.replace(phase, tries=phase.tries + 1))
            self.actions.append(RecoverServers(str(error), lost))
            return
        names = ", ".join(f"ps:{server}" for server in lost)
        tried = f"{_MOST_RECOVERIES} times" if phase.tries >= _MOST_RECOVERIES else f"for {longest:g} s"
        failure = ParameterServerLost(f"{names} could not be replaced, tried {tried}. {error}")
        failure.__cause__ = error
        self.actions.append(GiveUpServers(failure))
        self._break(failure)

    def _worker_lost(self, worker: int, why: str) -> None:
        self.state = self.state._replace(ledger=self.state.ledger.worker_lost(worker))
        deadly = next((each for each in self.state.ledger.queue if each.lost_workers >= _MOST_LOST_WORKERS), None)
        if deadly is not None:
            self.state = self.state._replace(ledger=self.state.ledger.remove(deadly.closure))
            self._fail(deadly.closure, WorkerLostError(
                f"{deadly.closure.name} was given to {_MOST_LOST_WORKERS} workers, and each of them was lost while it "
                f"had it. The last time it was: {why}"
            ))  # fmt: skip

    # Closures.

    def _scheduled(self, closure: Closure) -> None:
        if isinstance(self.state.phase, (Broken, Ended)):
            self.actions.append(SetError(closure, _cancelled_by(self.state.phase.error or closed())))
            return
        if self.state.is_idle:
            self.actions.append(NoteIdle())
            self.state = self.state._replace(workers_seen_at=self.state.now)
        self.state = self.state._replace(ledger=self.state.ledger.add(closure))

    def _send(self, attempt: Attempt) -> None:
        self.state = self.state._replace(
            watch=self.state.watch.gets_work(ActorId(WORKER, attempt.worker), self.state.now)
        )
        self.actions.append(SendStep(attempt))

    def _answered(self, attempt: Attempt, answer: Answer) -> None:
        match answer:
            case WorkerGone(why):
                actor = ActorId(WORKER, attempt.worker)
                self._gone(actor, self.state.watch[actor].life, why)
                return
            case UnexpectedBatch(iterator):
                self.state = self.state._replace(ledger=self.state.ledger.retraces(attempt))
                self.actions.append(RetraceStep(attempt, iterator))
                return
            case ServerLost(reason):
                self.state = self.state.with_put_back(attempt)
                self.state = self.state.with_server_lost(reason)
            case StepFailed(error):
                self.state = self.state.with_finished(attempt)
                self._fail(attempt.closure, error)
            case Done():
                self.state = self.state.with_finished(attempt)
                self.actions.append(SetResult(attempt, answer))

    def _retraced(self, attempt: Attempt, error: BaseException | None) -> None:
        if isinstance(error, ParameterServerLost):
            self.state = self.state.with_put_back(attempt)
            self.state = self.state.with_server_lost(str(error))
        elif isinstance(error, WorkerLostError):
            self.state = self.state.with_put_back(attempt)  # The watch will hear of it, too.
        elif error is not None:
            self.state = self.state.with_finished(attempt)
            self._fail(attempt.closure, error)
        elif self.state.error is not None or self.state.quiet or not isinstance(self.state.phase, Serving):
            self.state = self.state.with_put_back(attempt)
        else:
            self.state, again = self.state.with_repeated(attempt)
            self._send(again)

    # Errors.

    def _fail(self, closure: Closure, error: BaseException) -> None:
        """Notes the error of a closure; what is queued is cancelled, and the first error is kept."""
        self.actions.append(SetError(closure, error))
        self.state = self.state._replace(error=self.state.error or error)
        self._cancel_queue(error)

    def _cancel_queue(self, error: BaseException) -> None:
        if not self.state.ledger.queued:
            return
        cancelled = CancelledError(f"This function was not run, because another one failed before it: {error!r}")
        self.actions += [SetError(each.closure, cancelled) for each in self.state.ledger.queue]
        self.state = self.state._replace(ledger=self.state.ledger.without_queue())

    def _cancel_all(self, error: CancelledError) -> None:
        self.actions += [SetError(closure, error) for closure in self.state.ledger.closures()]
        self.state = self.state._replace(ledger=self.state.ledger.without_closures())

    def _break(self, error: BaseException) -> None:
        if not isinstance(self.state.phase, Broken):
            self.state = self.state._replace(phase=Broken(error))
            self._cancel_all(_cancelled_by(error))

    def _close(self) -> None:
        error = self.state.fatal
        if error is None and not self.state.is_idle:
            error = CancelledError("The strategy was closed before all functions had run.")
            self._cancel_all(error)
        self.state = self.state._replace(phase=Ended(error))


def _cancelled_by(error: BaseException) -> CancelledError:
    if isinstance(error, CancelledError):
        return error
    cancelled = CancelledError(f"Training cannot go on: {error!r}")
    cancelled.__cause__ = error
    return cancelled
