"""One attempt, from the start of its tasks to the end of the last: which failed first, and how the others end."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import queue
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from replicax.errors.exit_codes import ExitCode, from_returncode, from_signal
from replicax.job.processes.events import (
    CallReturned,
    Event,
    Events,
    FoundSilent,
    Joined,
    JoinedWorkerLike,
    MemberNews,
    ProcessEnded,
    ProcessLike,
    ScriptEnded,
    SignalReceived,
    WaitingForOthers,
)
from replicax.job.processes.task import EVALUATOR, WORKERS
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.loss_policy import Failure, LossPolicy

# Two tasks that end within this time are ordered by when they ended, not by when the launcher learned of it.
_SECONDS_TO_SETTLE = 0.1
# When one is lost, workers that watch each other notice it by themselves, so that their scripts learn of it.
_SECONDS_TO_NOTICE = 3.0
_SIGNALED = 128  # An exit code above it stands for a signal.
_LOSSES = (ExitCode.STALLED, ExitCode.PEER_LOST)
#: The signals that tell the launcher to end the job.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
# Preempted workers save one after the other. The first that is done must not disturb the others.
_SECONDS_TO_SAVE = 60.0
# If all workers call `os._exit(0)` after their last line, they do so within this time.
_SECONDS_TO_FOLLOW = 5.0
# Python ends, and JAX leaves the others, within this time after the last function has returned.
_SECONDS_TO_LEAVE = 5.0


@dataclasses.dataclass(frozen=True)
class AttemptResult:
    """How an attempt ended."""

    workers: int
    code: int  # of the task that failed first, 0 if none did; if interrupted, of the signal or a resumption
    failed: str = ""  # the name of that task; "" if none failed
    seconds: float = 0.0
    interrupted: bool = False  # a signal has ended it (Ctrl-C, SIGTERM)
    revived: int = 0  # how many of its tasks were started again alone


class Grace(NamedTuple):
    """How many seconds tasks have to end, from the first signal to SIGKILL."""

    survivors: float = 5.0  # those that are left when one has failed
    all: float = 30.0  # all of them, when the launcher gets a signal


class Supervisor:
    """Runs one attempt; without a loss policy the loss of one task ends all."""

    def __init__(
        self,
        workers: int,
        start: Callable[[], Iterable[ProcessLike]],
        grace: Grace,
        terminal: Terminal,
        events: Events[Event],
        loss_policy: LossPolicy | None = None,
    ) -> None:
        self._workers, self._start, self._grace = workers, start, grace
        self._terminal, self._events, self._loss_policy = terminal, events, loss_policy
        self._tasks: list[ProcessLike] = []
        self._running: list[ProcessLike] = []
        self._failures: list[Failure] = []
        self._done: list[ProcessEnded] = []  # The processes that ended with 0.
        self._missed: list[Failure] = []  # Those of them that others may still need.
        self._returned: dict[str, CallReturned] = {}  # By the names of the tasks.
        self._tell_at = math.inf  # When to say which of them still run.
        self._signal = 0
        self._killed = False
        self._ask_at = math.inf  # When to send SIGTERM to the processes that still run; `_kill_at`: when to kill them.
        self._kill_at = math.inf
        self._miss_at = math.inf  # When it is certain that others need the missed ones.
        self._blamed_until = math.inf  # Later failures come from our own signals.

    def run(self) -> tuple[AttemptResult, Failure | None]:
        """Runs the tasks to their end. Returns the result of the attempt and the first failure."""
        started = time.monotonic()
        try:
            for process in self._start():
                self._tasks.append(process)
                self._running.append(process)
            while self._running or self._awaits():
                self._miss()
                self._ask_or_kill()
                self._tell_who_stays()
                self._start_due()
                self._take_event()
        finally:
            self._kill_all()
        first = self._first()
        if first is None and self._loss_policy is not None and not self._signal:
            first = self._loss_policy.verdict()
        code = self._code(first)
        name = first.culprit.task.name if first else ""
        revived = self._loss_policy.revived if self._loss_policy else 0
        seconds = time.monotonic() - started
        return AttemptResult(self._workers, code, name, seconds, bool(self._signal), revived), first

    def _first(self) -> Failure | None:
        """Returns the first failure, or that of the task to blame, if that has failed too."""
        first = min(self._failures, key=lambda failure: failure.time, default=None)
        own = [failure for failure in self._failures if first is not None and failure.process is first.culprit]
        return own[0] if own else first

    def _take_event(self) -> None:
        due = self._loss_policy.due if self._loss_policy is not None and self._may_revive() else math.inf
        wait = min(self._ask_at, self._kill_at, self._miss_at, self._tell_at, due) - time.monotonic()
        try:
            event = self._events.get(timeout=max(wait, 0) if math.isfinite(wait) else None)
        except queue.Empty:
            return
        if isinstance(event, SignalReceived):
            self._on_signal(event.number)
        elif isinstance(event, ScriptEnded):
            if not self._may_revive():  # Otherwise it is seen to when its process has ended.
                self._on_failing(event)
        elif isinstance(event, (FoundSilent, MemberNews)):
            # An event of an aborted attempt has a process that is not among these.
            if self._loss_policy and self._may_revive() and getattr(event, "process", None) in (None, *self._running):
                self._loss_policy.hears(event, self._running)
        elif isinstance(event, Joined):
            self._admit(event.process)
        elif isinstance(event, CallReturned):
            self._returned[event.process.task.name] = event
            self._tell_at = time.monotonic() + _SECONDS_TO_LEAVE
        elif isinstance(event, WaitingForOthers):
            self._find_missed()
        elif event.process in self._running:  # Not a process of an aborted attempt.
            self._on_end(event)

    def _on_end(self, event: ProcessEnded) -> None:
        process = event.process
        returncode = process.tidy_up()
        self._running.remove(process)
        code = process.told.code if process.told is not None else from_returncode(returncode)
        if self._loss_policy is not None:
            code = self._loss_policy.ended(process, code, asked=not self._may_revive())
        if self._is_borne(event, code):
            return
        if process.told is not None:  # The end of a process may be noticed before its message.
            self._on_failing(process.told)
        if code != 0:
            self._on_failure(Failure(process, code, event.time, process))
            return
        self._done.append(event)
        if self._loss_policy is not None:
            self._loss_policy.done(process, self._running)
        self._find_missed()
        if not self._failures and not _any_trains(self._running):
            self._on_training_done()

    def _may_revive(self) -> bool:
        """Returns whether single tasks may be started again: not while all of them are being ended."""
        return self._loss_policy is not None and not self._signal and not self._failures

    def _awaits(self) -> bool:
        return self._loss_policy is not None and self._may_revive() and self._loss_policy.awaits

    def _admit(self, joined_worker: JoinedWorkerLike) -> None:
        if self._loss_policy is None or not self._may_revive():
            joined_worker.refuse("the job is just ending")
        elif self._loss_policy.admits(joined_worker, self._running):
            self._tasks.append(joined_worker)
            self._running.append(joined_worker)

    def _start_due(self) -> None:
        """Starts the successors of tasks that have ended, when it is time."""
        if self._loss_policy is not None and self._may_revive():
            for process in self._loss_policy.start_due():
                self._tasks.append(process)
                self._running.append(process)

    def _is_borne(self, event: ProcessEnded, code: int) -> bool:
        """Returns whether the job goes on although a process has ended; has the task started again if wanted."""
        process = event.process
        failure = Failure(process, code, event.time, process)
        if code == 0 or self._loss_policy is None or not self._may_revive():
            return False
        if not self._loss_policy.bears(failure, self._running):
            return False
        self._tasks.remove(process)
        self._loss_policy.succeed(failure)
        return True

    def _find_missed(self) -> None:
        """Finds workers that ended with 0 although others need them: they left early or never came."""
        for process, time_of_end in [] if self._signal else self._done:
            if process.task.type not in WORKERS or any(process is missed.process for missed in self._missed):
                continue
            waiting = [other.task.name for other in self._running if other.meets and other.meets == self._workers]
            if process.meets and not process.has_left:
                why = "in the middle of the job, by os._exit or the like and not at the end of its script"
            elif waiting and not process.meets:
                why = f"before it came to where {', '.join(waiting)} waited for it: it made no strategy"
            else:
                continue
            process.last_words = f"replicax: the process of {process.task.name} ended with exit code 0 {why}."
            self._missed.append(Failure(process, ExitCode.PEER_LOST, time_of_end, process))
            seconds = _SECONDS_TO_FOLLOW if process.meets else 0.0
            self._miss_at = min(self._miss_at, time.monotonic() + seconds)

    def _miss(self, now: bool = False) -> None:
        """Counts the end of a worker with 0 as a failure, if others that need it fail or go on."""
        if now or time.monotonic() >= self._miss_at:
            self._miss_at = math.inf
            for failure in self._missed if now or _any_trains(self._running) else []:
                self._fail(failure)

    def _on_failing(self, event: ScriptEnded) -> None:
        self._on_failure(Failure(event.process, event.code, event.time, _culprit(self._tasks, event)))

    def _on_failure(self, failure: Failure) -> None:
        self._miss(now=True)
        self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        if any(failure.process is other.process for other in self._failures):
            return  # The failure of its script is known, and now its process has ended.
        if failure.time > self._blamed_until:
            return
        self._failures.append(failure)
        now = time.monotonic()
        delay = (
            _SECONDS_TO_SAVE if failure.code == ExitCode.RESUME else _seconds_to_settle(self._running, self._failures)
        )
        if not self._signal:  # Otherwise they have got a signal already.
            self._ask_at = min(self._ask_at, now + delay)

    def _on_training_done(self) -> None:
        """Reports that only an evaluator is left, which ends after the last checkpoint."""
        for process in self._running:
            self._terminal.say(f"The training is done; waiting for {process.task.name}. Ctrl-C ends it.")

    def _tell_who_stays(self) -> None:
        """Says which processes run on although all functions have returned: those with others to wait for may."""
        if time.monotonic() < self._tell_at:
            return
        self._tell_at = math.inf
        staying = [self._returned.get(process.task.name) for process in self._running]
        for each in staying if all(staying) else ():
            assert each is not None
            names = ", ".join(each.threads)
            why = f"it waits for its threads that are no daemons ({names})" if names else "something keeps it alive"
            self._terminal.say(
                f"Waiting for the process of {each.process.task.name}: its function has returned, but {why}. "
                "Ctrl-C ends it."
            )

    def _on_signal(self, number: int) -> None:
        name = signal.Signals(number).name
        if self._signal and number == signal.SIGINT:
            self._terminal.say("Killing all tasks.")
            self._kill_all_now()
            return
        more = " Ctrl-C again kills them." if number == signal.SIGINT else ""
        self._terminal.say(f"{name} is passed on to all tasks.{more}")
        self._signal, self._ask_at = number, math.inf  # No task gets a second signal.
        if number in ENDING:
            self._kill_at = min(self._kill_at, time.monotonic() + self._grace.all)
        if self._loss_policy is not None and number in ENDING:
            self._loss_policy.ends_all()
        for process in self._running:
            process.send(number)

    def _ask_or_kill(self) -> None:
        now = time.monotonic()
        if now >= self._ask_at:
            self._ask_at, self._kill_at, self._blamed_until = math.inf, now + self._grace.survivors, now
            first = self._first()
            assert first is not None  # Only a failure sets `_ask_at`.
            self._ask(first)
        if now >= self._kill_at:
            if self._signal in ENDING and self._running:
                names = ", ".join(process.task.name for process in self._running)
                self._terminal.say(f"Killing {names}: not ended {self._grace.all:g} s after the signal.")
            self._kill_all_now()

    def _kill_all_now(self) -> None:
        self._kill_at, self._blamed_until = math.inf, min(self._blamed_until, time.monotonic())
        self._killed = True
        for process in self._running:
            process.kill()

    def _ask(self, first: Failure) -> None:
        """Sends SIGTERM to the tasks that have not failed. The others are ending, or wait for these at their exit."""
        failed = [failure.process for failure in self._failures]
        others = [process for process in self._running if process not in failed]
        if others:
            names = ", ".join(process.task.name for process in others)
            self._terminal.say(
                f"{first.culprit.task.name} failed ({first.how}); ending {names} within {self._grace.survivors:g} s."
            )
        if self._loss_policy is not None:
            self._loss_policy.ends_all()
        for process in others:
            process.send(signal.SIGTERM)

    def _kill_all(self) -> None:
        for process in self._running:
            process.kill()
        for process in self._running:
            with contextlib.suppress(OSError):
                process.tidy_up()

    def _code(self, first: Failure | None) -> int:
        if not self._signal:
            return first.code if first else ExitCode.OK
        codes = {failure.code for failure in self._failures}
        if ExitCode.RESUME in codes:  # The launcher's caller should resume the job.
            return ExitCode.RESUME
        return from_signal(self._signal) if codes or self._killed else ExitCode.OK


def _culprit(tasks: Sequence[ProcessLike], event: ScriptEnded) -> ProcessLike:
    names = {process.task.name: process for process in tasks}
    blamed = [names[name] for name in event.blames if name in names]
    return event.process if not blamed or event.process in blamed else blamed[0]


def _seconds_to_settle(running: Sequence[ProcessLike], failures: Sequence[Failure]) -> float:
    """Returns how long to wait for those that notice the loss of a worker themselves, so that no signal ends them."""
    is_loss = all(each.code > _SIGNALED or each.code in _LOSSES for each in failures)
    known = [each for failure in failures for each in (failure.process, failure.culprit)]
    notice = any(process.watched and process not in known for process in running)
    return _SECONDS_TO_NOTICE if is_loss and notice else _SECONDS_TO_SETTLE


def _any_trains(processes: Sequence[ProcessLike]) -> bool:
    return any(process.task.type != EVALUATOR for process in processes)
