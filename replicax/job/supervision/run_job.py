"""Runs a job: one attempt after the other, each to its end, as the machine and the policies decide."""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple, cast

from replicax.checks.environment_names import LIFE
from replicax.cluster.patience import Patience
from replicax.errors.exit_codes import ExitCode, describe, from_returncode
from replicax.group.membership.membership_log import MembershipLog
from replicax.group.membership.store_process import Host
from replicax.job.options import Options
from replicax.job.processes.events import (
    Event as ProcessEvent,
    Events,
    ProcessEnded,
    ProcessLike,
    SignalReceived,
    Started,
    TaskRun,
)
from replicax.job.processes.output import error_line, shortened
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision import actions
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.loss_policy import LossPolicy
from replicax.job.supervision.machine import ENDING, next_state
from replicax.job.supervision.restart_policy import AttemptResult, Finish, RestartPolicy
from replicax.job.supervision.state import PATIENCE, Ended, Event, Grace, JobState, Tick

_RULE = "─" * 8


class JobPolicy(NamedTuple):
    """The losses that a job bears, and how long it waits."""

    workers: int
    grace: Grace = Grace()
    losses: LossPolicy = LossPolicy()
    restarts: RestartPolicy = RestartPolicy()
    patience: Patience = PATIENCE

    @classmethod
    def of(cls, options: Options, patience: Patience = PATIENCE) -> JobPolicy:
        """Returns the policy that a user has chosen."""
        losses = ElasticPolicy.of(options) if options.goes_on else LossPolicy()
        return cls(options.workers, Grace.of(options), losses, RestartPolicy.of(options), patience)


class ComingAndGoing(NamedTuple):
    """The needs of workers that come and go."""

    store: Host
    log: MembershipLog | None
    start: Callable[[PlannedTask], ProcessLike]  # a task once more


class Tasks(NamedTuple):
    """The tasks of an attempt."""

    processes: Iterable[ProcessLike]  # It starts them, one after the other.
    elastic: ComingAndGoing | None = None


#: Prepares an attempt, given the number of workers and that of the attempt, until it is over.
Start = Callable[[int, int], contextlib.AbstractContextManager[Tasks]]


class Outcome(NamedTuple):
    """How a job has ended: its last attempt, and the first failure of that."""

    attempt: AttemptResult
    failure: Failure | None


def run_job(start: Start, policy: JobPolicy, terminal: Terminal, events: Events[ProcessEvent]) -> Outcome:
    """Runs one attempt after the other, until the job is done or the policy restarts it no more."""
    workers, history = policy.workers, list[AttemptResult]()
    while True:
        losses = policy.losses.after(sum(attempt.revived for attempt in history))
        with start(workers, len(history)) as tasks:
            state = JobState(workers, losses, policy.grace, policy.patience)
            outcome = _Attempt(state, tasks, terminal, events).run()
            if tasks.elastic is not None and tasks.elastic.log is not None:
                tasks.elastic.log.finish(outcome.attempt.code, describe(outcome.attempt.code))
        attempt, failure = outcome
        history.append(attempt)
        decision = policy.restarts.decide(history)
        if isinstance(decision, Finish):
            return outcome
        how = failure.how if failure is not None else describe(attempt.code)
        line = error_line(failure.words) if failure is not None else ""
        terminal.say(f"{attempt.failed} ended with {how}{f' ({line})' if line else ''}. {decision.why}.")
        workers = decision.workers


def show_end(outcome: Outcome, terminal: Terminal) -> int:
    """Shows the last words of the first failing task, below everything else, where users look; returns the code."""
    attempt, failure = outcome
    if attempt.interrupted:
        terminal.say(f"All tasks have ended; {describe(attempt.code)}.")
    elif failure is not None and failure.code == ExitCode.RESUME:
        terminal.say(f"{attempt.failed} ended with {describe(attempt.code)}.")
    elif failure is not None:
        terminal.show(f"\n{_RULE} {attempt.failed} failed first: {failure.how} {_RULE}")
        found = f" (found by {failure.task.name})" if failure.task != failure.culprit else ""
        terminal.show(f"Its log: {failure.log_path}{found}\n\n{shortened(failure.words) or 'It printed nothing.'}")
    return attempt.code


class _Attempt:
    """Carries out what the machine decides about one attempt, and tells it what happens."""

    def __init__(self, state: JobState, tasks: Tasks, terminal: Terminal, events: Events[ProcessEvent]):
        self._state, self._tasks, self._terminal, self._events = state, tasks, terminal, events
        self._processes: dict[TaskRun, ProcessLike] = {}  # those that have not ended
        self._plans: dict[str, PlannedTask] = {}  # by the names of the tasks

    def run(self) -> Outcome:
        """Runs the tasks to their end."""
        began = time.monotonic()
        try:
            for process in self._tasks.processes:
                self._has_started(process)
            while not self._state.is_over:
                self._tell(self._next_event())
        finally:
            self._kill_all()
        state, failure = self._state, self._state.first_failure
        name, seconds = failure.culprit.name if failure else "", time.monotonic() - began
        revived = state.members.revived
        return Outcome(AttemptResult(state.workers, state.code, name, seconds, bool(state.signal), revived), failure)

    def _next_event(self) -> Event:
        """Waits until something happens, or something is due."""
        wait = self._state.due - time.monotonic()
        try:
            event = self._events.get(timeout=max(wait, 0) if math.isfinite(wait) else None)
        except queue.Empty:
            return Tick()
        return self._as_value(event) or Tick()

    def _as_value(self, event: ProcessEvent) -> Event | None:
        """Returns an event with a value in the place of its process; None if that is of another attempt."""
        process = getattr(event, "process", None)
        if process is None:
            return cast(Event, event)
        run = next((run for run, known in self._processes.items() if known is process), None)
        if run is None:
            return None
        if not isinstance(event, ProcessEnded):
            return cast(Event, cast(Any, event)._replace(process=run))
        returncode = process.tidy_up()
        del self._processes[run]
        told = process.told and process.told._replace(process=run)
        code = told.code if told else from_returncode(returncode)
        return Ended(run, event.time, code, told, process.last_words, process.has_left, process.meets, process.is_lost)

    def _tell(self, event: Event) -> None:
        """Tells the machine of an event, and carries out what it decides."""
        self._state, decided = next_state(self._state.at(time.monotonic()), event)
        for action in decided:
            self._do(action)

    def _do(self, action: actions.Action) -> None:
        elastic = self._tasks.elastic
        match action:
            case actions.Say(text):
                self._terminal.say(text)
            case actions.ShowWords(log_path, words):
                self._terminal.show(f"Its log: {log_path}\n\n{shortened(words) or 'It printed nothing.'}")
            case actions.Send(run, number):
                self._processes[run].send(number)
            case actions.Kill(run):
                self._processes[run].kill()
            case actions.StartAgain(run) if elastic is not None:
                plan = self._plans[run.name]
                environment = {**plan.environment, LIFE: str(run.life)}
                self._has_started(elastic.start(plan.with_environment(environment)))
            case actions.TellEnd(incarnation) if elastic is not None:
                elastic.store.tell_end(incarnation)
            case actions.TellEnding() if elastic is not None:
                elastic.store.tell_ending()
            case actions.Log(event, arguments) if elastic is not None and elastic.log is not None:
                getattr(elastic.log, event)(*arguments)

    def _has_started(self, process: ProcessLike) -> None:
        run = TaskRun.of(process.task)
        self._processes[run], self._plans[run.name] = process, process.task
        self._tell(Started(run, process.pid, "", process.log_path, process.waits))

    def _kill_all(self) -> None:
        left = list(self._processes.values())
        for process in left:
            process.kill()
        for process in left:
            with contextlib.suppress(OSError):
                process.tidy_up()


@contextlib.contextmanager
def signals_as(events: Events[ProcessEvent], numbers: Sequence[int] = ENDING) -> Iterator[None]:
    """Reports signals as events while the block runs. Signals that are ignored (`nohup`) stay ignored."""

    def report(number: int, _: FrameType | None) -> None:
        events.put(SignalReceived(number))

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, report)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
