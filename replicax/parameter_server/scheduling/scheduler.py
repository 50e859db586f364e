"""The thread that schedules: it observes what has happened, lets the machine decide, and carries that out.

All that is known is one value, the state. It is replaced under a lock by `next_state`, in the thread in which something
happens; threads that wait look at it again then. The scheduler's own thread carries out the decisions, without the
lock: if Ray does not answer, Ctrl-C must still interrupt those that wait.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator

from replicax.errors import ClusterTimeoutError, ParameterServerLost
from replicax.parameter_server.actors.actor_errors import closed
from replicax.parameter_server.scheduling.actions import Call, Note, NoteIdle, NoteReport, SetError, SetResult
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.events import (
    Closed,
    ErrorRaised,
    Event,
    QuietBegan,
    QuietEnded,
    RecoveryWaitEnded,
    RecoveryWanted,
    Scheduled,
    SchedulerFailed,
    Tick,
)
from replicax.parameter_server.scheduling.machine import next_state
from replicax.parameter_server.scheduling.runner import ActorGroup, CallRunner, Observation
from replicax.parameter_server.scheduling.state import SchedulerState
from replicax.parameter_server.scheduling.stats import Queue
from replicax.runtime.threads import StoppedAtEnd

_MOST_PER_TICK_S = 2.0  # If this process was held up, that is nobody else's fault.
_TICKS_AT_MOST = 5  # in the time of one, while answers come in


class Scheduler:
    """Lets closures be run by workers, and takes care of workers and servers."""

    def __init__(self, actors: ActorGroup, state: SchedulerState, max_queued: int = 1000):
        self._actors, self._state, self._max_queued = actors, state, max_queued
        self._patience = state.watch.patience
        self._tick_s = min(self._patience.again, self._patience.stall) / 4
        self._changed = threading.Condition()
        self._calls: list[Call] = []
        self._observations: queue.SimpleQueue[Observation | None] = queue.SimpleQueue()
        self._runner = CallRunner(actors, self._observations.put)
        self._beat = self._last_tick = time.monotonic()
        self._thread = StoppedAtEnd("replicax-scheduler", self._run, stop=self._ask_to_stop)

    def start(self) -> None:
        """Begins; the workers are started."""
        self._runner.start()
        self._thread.start()

    # Calls of other threads.

    def add(self, closure: Closure) -> None:
        """Queues a closure; waits while the queue is full."""
        with self._changed:
            self._wait(lambda: self._state.ledger.queued < self._max_queued or self._state.error is not None)
            if self._state.is_ended:
                raise closed()
            self.raise_error()
            self._apply(Scheduled(closure))

    def raise_error(self) -> None:
        """Raises the first error there has been since this was called last, when nothing is under way any more."""
        with self._changed:
            if self._state.error is not None:
                self._wait(lambda: self._state.ledger.under_way == 0)
            if self._state.fatal is not None:
                raise self._state.fatal
            error = self._state.error
            if error is not None:  # Another thread may have raised it while this one waited.
                self._apply(ErrorRaised())
                raise error

    def recover_servers(self, reason: str) -> bool:
        """Lets lost servers be replaced and waits for that; returns whether it could be done from this thread."""
        own = threading.get_ident()
        if own in (self._runner.helper, self._thread.ident):
            return False
        with self._changed:
            self._apply(RecoveryWanted(own, reason))
            try:
                self._wait(lambda: not self._state.is_recovering)
            finally:
                self._apply(RecoveryWaitEnded(own))
            if self._state.fatal is not None:
                raise self._state.fatal
            if self._state.is_ended:
                raise ParameterServerLost(f"{reason} The strategy was closed before it could be replaced.")
        return True

    def fail(self, error: BaseException) -> None:
        """Ends all: whoever waits for anything raises the error."""
        with self._changed:
            self._apply(SchedulerFailed(error))

    def is_idle(self) -> bool:
        """Returns whether nothing is queued or under way."""
        return self._state.is_idle

    def queue(self) -> Queue:
        """Returns how much there is to do."""
        ledger = self._state.ledger
        return Queue(ledger.queued, ledger.under_way, len(ledger.ready))

    def join(self, timeout: float | None) -> bool:
        """Waits until nothing is queued or under way, or there is an error; returns whether that came about in time."""
        with self._changed:
            return self._wait(lambda: self._state.error is not None or self._state.is_idle, timeout)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Returns a context in which nothing is under way; others may be in one at the same time."""
        own = threading.get_ident()
        with self._changed:
            self._apply(QuietBegan(own))
        try:
            with self._changed:
                # The helper's own work is what has to be quiet for the helper.
                self._wait(lambda: self._state.is_quiet(for_helper=own == self._runner.helper))
            yield
        finally:
            with self._changed:
                self._apply(QuietEnded(own))

    def _wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition() and self._state.fatal is None and not self._state.is_ended:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            longest = self._state.longest_wait
            if time.monotonic() - self._beat > longest:
                raise ClusterTimeoutError(
                    "the coordinator", longest, ["Ray"], "this machine", ", whose calls do not return"
                )
            self._changed.wait(self._tick_s)  # with an end, so that Ctrl-C is heard
        return True

    def close(self) -> None:
        """Ends the thread; what is queued or under way is cancelled."""
        self._thread.stop(self._patience.end)

    def _ask_to_stop(self) -> None:
        with self._changed:
            self._apply(Closed())
        self._observations.put(None)
        self._runner.close()

    # The state; the lock is held.

    def _apply(self, event: Event) -> None:
        self._state, actions = next_state(self._state, event)
        is_woken = bool(self._calls)  # or it runs, and is about to take them
        for action in actions:
            if isinstance(action, (SetResult, SetError, NoteIdle, NoteReport)):
                self._take_note(action)
            else:
                self._calls.append(action)
        if self._calls and not is_woken and threading.get_ident() != self._thread.ident:
            self._observations.put(None)
        self._changed.notify_all()

    def _take_note(self, note: Note) -> None:
        match note:
            case SetResult(attempt, done):
                try:
                    self._actors.set_result(attempt, done)
                except BaseException as error:
                    attempt.closure.value._set_error(error)
                    raise
            case SetError(closure, error):
                closure.value._set_error(error)
            case NoteIdle():
                self._actors.note_idle()
            case NoteReport(worker, report):
                self._actors.note_report(worker, report)

    # The thread.

    def _run(self) -> None:
        try:
            while not self._state.is_ended:
                for call in self._decide(self._observe()):
                    self._runner.run(call)
                    del call  # It may hold a closure, and so what its caller holds.
                self._beat = time.monotonic()
        except BaseException as error:
            self.fail(error)

    def _observe(self) -> list[Event]:
        """Returns what has happened, as soon as something has, or it is time to look at the clock."""
        observations: list[Observation | None] = []
        with contextlib.suppress(queue.Empty):
            observations.append(self._observations.get(timeout=self._tick_s))
            while True:
                observations.append(self._observations.get_nowait())
        return [observation() for observation in observations if observation is not None]

    def _decide(self, events: list[Event]) -> list[Call]:
        now = time.monotonic()
        with self._changed:
            for event in events:
                self._apply(event)
            if (passed := now - self._last_tick) >= self._tick_s / _TICKS_AT_MOST:
                self._last_tick = now
                self._apply(Tick(self._state.now + min(passed, _MOST_PER_TICK_S)))
            calls, self._calls = self._calls, []
        self._actors.drop_unused()
        return calls
