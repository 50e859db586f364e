"""The thread that hands steps to workers, watches all actors, and deals with what comes back."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from replicax.errors import CancelledError, ClusterTimeoutError, ParameterServerLost
from replicax.parameter_server.actors.actor_errors import Raised, closed, is_actor_lost, own_error
from replicax.parameter_server.actors.messages import Done
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.dispatch import Attempt, Dispatch, Failed, Gone
from replicax.parameter_server.scheduling.policy import Ledger
from replicax.parameter_server.scheduling.stats import Queue
from replicax.parameter_server.scheduling.watch import Watch, Who, longest_wait

_TICK_S = 0.25
_MOST_PER_TICK_S = 2.0  # If this process was held up, that is nobody else's fault.


class Crew(Protocol):
    """Those whom the scheduler deals with. Only `submit`, `ping`, `heard` and `tidy` are called in its own thread, and
    return at once; what may wait has another."""

    def submit(self, worker: int, closure: Closure) -> concurrent.futures.Future[Any]:
        """Sends a closure to a worker; returns a future of its answer."""

    def ping(self, who: Who, life: int) -> concurrent.futures.Future[Any] | None:
        """Asks an actor for a sign of life; None if this life of it is over."""

    def heard(self, who: Who, answer: Any) -> int:
        """Takes the answer to a ping; returns how much of its setting up a worker has done."""

    def start(self, who: Who, life: int) -> int:
        """Starts a worker, in the place of one that there may be; returns how much it has to do before it is up."""

    def end(self, who: Who, life: int, why: str) -> None:
        """Kills an actor that hangs."""

    def retrace(self, worker: int, closure: Closure, iterator: int) -> None:
        """Makes the closure's program for the batch that a worker has."""

    def recover(self, reason: str) -> None:
        """Replaces lost servers while nothing is under way, or raises."""

    def done(self, worker: int, closure: Closure, done: Done) -> None:
        """Is told of each step that is through: the worker and what it answered."""

    def tidy(self) -> None:
        """Does what is to be done now and then."""


class Scheduler:
    """Hands out closures and watches those who do them. What to do, `Dispatch` decides; here it is done.

    Args:
        ledger: Decides who gets what.
        crew: The workers and servers.
        servers: How many servers there are, started already.
        max_queued: How many closures may wait.
        stall_timeout: How long an actor may take to answer or to get on with its work, in seconds.
        start_timeout: How long it may take to start.
    """

    def __init__(
        self,
        ledger: Ledger,
        crew: Crew,
        servers: int = 0,
        max_queued: int = 1000,
        stall_timeout: float = 300.0,
        start_timeout: float = 120.0,
    ):
        self._ledger, self._crew, self._max_queued = ledger, crew, max_queued
        self._longest_wait = longest_wait(start_timeout, stall_timeout)
        watch = Watch(ledger.workers, servers, stall_timeout, start_timeout)
        self._dispatch = Dispatch(ledger, watch, self._longest_wait)
        self._tick_s = min(_TICK_S, stall_timeout / 4)
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._helper_tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._closed = self._is_over = False
        self._last_time = self._beat = time.monotonic()
        for server in range(servers):
            self._dispatch.server_starts(server)
        self._helper = threading.Thread(target=self._help, name="replicax-scheduler-helper", daemon=True)
        self._thread = threading.Thread(target=self._run, name="replicax-scheduler", daemon=True)

    def start(self) -> None:
        """Begins; the workers are started."""
        self._helper.start()
        self._thread.start()

    # What other threads call.

    def add(self, closure: Closure) -> None:
        """Queues a closure; waits while the queue is full.

        Raises:
            ContextError: The scheduler was closed.
        """
        with self._changed:
            self._wait(lambda: self._ledger.queued < self._max_queued or self._dispatch.error is not None, None)
            if self._closed:
                raise closed()
            self.raise_error()
            self._dispatch.add(closure)
        self._look()

    def raise_error(self) -> None:
        """Raises the first error there has been since this was called last, when nothing is under way any more."""
        with self._changed:
            if self._dispatch.error is not None:
                self._wait(lambda: self._ledger.under_way == 0, None)
            if self._dispatch.fatal is not None:
                raise self._dispatch.fatal
            error, self._dispatch.error = self._dispatch.error, None
            if error is not None:  # Another thread may have raised it while this one waited.
                raise error

    def recover_servers(self, reason: str) -> bool:
        """Lets lost servers be replaced and waits for that; returns whether it could be done from this thread.

        Raises:
            ParameterServerLost: They cannot be replaced.
        """
        own = threading.get_ident()
        if own in (self._helper.ident, self._thread.ident):
            return False
        with self._changed:
            self._dispatch.want_recovery(reason, own)
            self._look()
            try:
                self._wait(lambda: not self._dispatch.recovering, None)
            finally:
                self._dispatch.wants_no_more(own)
            if self._dispatch.fatal is not None:
                raise self._dispatch.fatal
            if self._closed:
                raise ParameterServerLost(f"{reason} The strategy was closed before it could be replaced.")
        return True

    def server_starts(self, server: int) -> None:
        """Notes that a server is being started in the place of one that there was."""
        self._events.put(functools.partial(self._dispatch.server_starts, server))

    def is_idle(self) -> bool:
        """Returns whether nothing is queued or under way."""
        with self._changed:
            return self._dispatch.is_idle

    def queue(self) -> Queue:
        """Returns how much there is to do."""
        with self._changed:
            return Queue(self._ledger.queued, self._ledger.under_way, len(self._ledger.ready))

    def join(self, timeout: float | None) -> bool:
        """Waits until nothing is queued or under way, or there is an error; returns whether that came about in time."""
        with self._changed:
            return self._wait(lambda: self._dispatch.error is not None or self._dispatch.is_idle, timeout)

    @contextlib.contextmanager
    def quiet(self) -> Any:
        """Returns a context in which nothing is under way; others may be in one at the same time."""
        own = threading.get_ident()
        with self._changed:
            self._dispatch.begin_quiet(own)
        try:
            with self._changed:
                # The helper's own work is what has to be quiet for the helper.
                self._wait(lambda: self._dispatch.is_quiet(for_helper=own == self._helper.ident), None)
            yield
        finally:
            with self._changed:
                self._dispatch.end_quiet(own)
            self._look()

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not condition() and self._dispatch.fatal is None and not self._is_over:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if time.monotonic() - self._beat > self._longest_wait:
                raise ClusterTimeoutError(
                    "the coordinator", self._longest_wait, ["Ray"], "this machine", ", whose calls do not return"
                )
            self._changed.wait(self._tick_s)  # with an end, so that Ctrl-C is heard
        return True

    def close(self) -> None:
        """Ends the thread; what is queued or under way is cancelled."""
        self._closed = True
        self._look()
        self._helper_tasks.put(None)
        if self._thread.is_alive():
            self._thread.join(10)
        with self._changed:
            if not self._dispatch.is_idle:
                self._dispatch.give_up(CancelledError("The strategy was closed before all functions had run."))
            self._is_over = True
            self._changed.notify_all()

    # The thread.

    def _look(self) -> None:
        self._events.put(lambda: None)

    def _run(self) -> None:
        try:
            while not self._closed:
                for action in self._decide():
                    # Without the lock: if Ray does not answer, those who wait must be able to hear Ctrl-C.
                    getattr(self, f"_{type(action).__name__.lower()}")(*action)
                    del action  # It may hold the error of a step, and so the frames of its call.
                self._beat = time.monotonic()
        except BaseException as error:
            with self._changed:
                self._dispatch.give_up(error)
                self._changed.notify_all()

    def _decide(self) -> list[Any]:
        events = self._wait_for_events()
        now = time.monotonic()
        with self._changed:
            for event in events:
                event()
            passed, self._last_time = now - self._last_time, now
            self._dispatch.now += min(passed, _MOST_PER_TICK_S)
            self._dispatch.ticks()
            actions = self._dispatch.take_actions()
            self._changed.notify_all()
        self._crew.tidy()
        return actions

    def _wait_for_events(self) -> list[Callable[[], None]]:
        events = []
        with contextlib.suppress(queue.Empty):
            events.append(self._events.get(timeout=self._tick_s))
            while True:
                events.append(self._events.get_nowait())
        return events

    # Doing what was decided.

    def _send(self, attempt: Attempt) -> None:
        future = self._crew.submit(attempt.worker, attempt.closure)
        future.add_done_callback(lambda future: self._events.put(lambda: self._on_answer(attempt, future)))

    def _on_answer(self, attempt: Attempt, future: concurrent.futures.Future[Any]) -> None:
        error = future.exception()
        if error is not None:
            answer: Any = Gone(str(error)) if is_actor_lost(error) else Failed(own_error(error))
        else:
            answer = future.result()
        if isinstance(answer, Raised):
            answer = Failed(answer.error())
        if self._dispatch.answered(attempt, answer):
            self._crew.done(attempt.worker, attempt.closure, answer)

    def _ping(self, who: Who, life: int) -> None:
        future = self._crew.ping(who, life)
        if future is not None:
            future.add_done_callback(lambda future: self._events.put(lambda: self._on_ping(who, life, future)))

    def _on_ping(self, who: Who, life: int, future: concurrent.futures.Future[Any]) -> None:
        if self._closed:
            return
        if future.exception() is not None:
            self._dispatch.goes(who, life, str(future.exception()))
        elif self._dispatch.watch.is_current(who, life):
            self._dispatch.answers(who, life, self._crew.heard(who, future.result()))

    def _start(self, who: Who, life: int) -> None:
        def task() -> Callable[[], None]:
            try:
                goal = self._crew.start(who, life)
            except Exception as error:
                why = f"It cannot be started: {error}"
                return lambda: self._dispatch.goes(who, life, why)
            return lambda: self._dispatch.started(who, life, goal)

        self._aside(task)

    def _end(self, who: Who, life: int, why: str) -> None:
        def task() -> Callable[[], None]:
            self._crew.end(who, life, why)
            return lambda: self._dispatch.goes(who, life, why)

        self._aside(task)

    def _aside(self, task: Callable[[], Callable[[], None]]) -> None:
        """Does something that may wait, in a thread of its own, and then what it returns."""
        run = functools.partial(self._run_task, task)
        threading.Thread(target=run, name="replicax-scheduler-aside", daemon=True).start()

    def _retrace(self, attempt: Attempt, iterator: int) -> None:
        retrace = functools.partial(self._crew.retrace, attempt.worker, attempt.closure, iterator)
        self._helper_tasks.put(lambda: self._try(retrace, functools.partial(self._dispatch.retraced, attempt)))

    def _recover(self, reason: str) -> None:
        recover = functools.partial(self._crew.recover, reason)
        self._helper_tasks.put(lambda: self._try(recover, self._dispatch.recovered))

    def _try(self, task: Callable[[], None], then: Callable[[BaseException | None], None]) -> None:
        failure: BaseException | None = None
        try:
            task()
        except BaseException as error:
            failure = error
        self._events.put(lambda: then(failure))

    def _run_task(self, task: Callable[[], Callable[[], None]]) -> None:
        try:
            self._events.put(task())
        except BaseException as error:
            failure = error
            self._events.put(lambda: self._dispatch.give_up(failure))

    def _help(self) -> None:
        while (task := self._helper_tasks.get()) is not None:
            task()
