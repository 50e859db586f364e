"""A scheduler with workers that are a list of futures: for its tests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import ray

from replicax.parameter_server.actors.messages import Done, Report
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.ledger import Attempt, Ledger
from replicax.parameter_server.scheduling.scheduler import Scheduler
from replicax.parameter_server.scheduling.state import SchedulerState
from replicax.parameter_server.scheduling.watch import SERVER, ActorId
from replicax.program.pytrees import Structure
from replicax.ray_cluster.deadline import PATIENCE

SOON = 10.0
DONE = Done([np.zeros(1)], {}, {}, {}, 0, 0)
REPORT = Report("node", 0, "cpu", set_up=0)
LOST = ray.exceptions.ActorDiedError()


def eventually(condition: Callable[[], Any]) -> Any:
    """Waits until a condition holds, and returns what it returned."""
    deadline = time.monotonic() + SOON
    while not (found := condition()):
        assert time.monotonic() < deadline, "It did not come about."
        time.sleep(0.001)
    return found


def _closure(number: int) -> Closure:
    def fn() -> None: ...

    fn.__name__ = f"step{number}"
    return Closure(number, fn, [], Structure(None, (), 0))


class Party:
    """A scheduler, and everybody it deals with: they answer pings at once unless told not to.

    Attributes:
        sent: What workers were given and have not answered: worker, closure and future, in order.
        given: All closures that workers were given, in order.
        on_retrace: What compiling for another batch does; it is called with worker, closure and iterator.
        on_done: What is done with a result.
        on_recover: What the recovery of servers does; it is called with the reason.
        silent: Who does not answer pings.
    """

    def __init__(
        self,
        workers: int = 2,
        servers: int = 0,
        max_queued: int = 1000,
        start: float = 1000.0,
        stall: float = 1000.0,
        **options: Any,
    ):
        self.sent: list[tuple[int, Closure, Future[Any]]] = []
        self.events: list[Any] = []
        self.given: list[Closure] = []
        self.on_retrace: Callable[[int, Closure, int], None] = lambda worker, closure, iterator: None
        self.on_recover: Callable[[str], None] = lambda reason: None
        self.on_done: Callable[[int, Closure, Done], None] = lambda worker, closure, done: closure.value._set_result(
            (worker, closure.name)
        )
        self.server_starts: Callable[[int], None] = lambda server: None
        self.silent: set[ActorId] = set()
        self.replaces = True
        self.drop_unused: Callable[[], None] = lambda: None
        patience = PATIENCE._replace(start=start, stall=stall, again=0.08)  # It looks around often.
        state = SchedulerState.of(Ledger.of(workers, **options), servers, patience)
        self.scheduler = Scheduler(self, state, max_queued)
        self.scheduler.start()
        eventually(lambda: self.scheduler.queue().ready_workers == workers)
        self.events.clear()

    # What the scheduler calls.

    def send(self, attempt: Attempt) -> Future[Any]:
        future: Future[Any] = Future()
        self.given.append(attempt.closure)
        self.sent.append((attempt.worker, attempt.closure, future))
        return future

    def ping(self, actor: ActorId, life: int) -> Future[Any]:
        future: Future[Any] = Future()
        if actor not in self.silent:
            future.set_result(("node", 0) if actor.job == SERVER else REPORT)
        return future

    def note_report(self, worker: int, report: Report) -> None:
        assert report is REPORT

    def note_idle(self) -> None: ...

    def retrace(self, attempt: Attempt, iterator: int) -> None:
        self.on_retrace(attempt.worker, attempt.closure, iterator)

    def recover(self, reason: str, lost: Sequence[int], starting: Callable[[int], None]) -> None:
        self.server_starts = starting
        self.on_recover(reason)

    def start(self, actor: ActorId, life: int) -> int:
        self.events.append(("replaced", actor.index))
        self.silent.discard(actor)
        if not self.replaces:
            raise RuntimeError("no room")
        return 0

    def end(self, actor: ActorId, life: int, why: str) -> None:
        self.events.append(("ended", actor.index))
        for sent in [sent for sent in self.sent if ActorId("worker", sent[0]) == actor]:
            self.sent.remove(sent)
            sent[2].set_exception(LOST)

    def set_result(self, attempt: Attempt, done: Done) -> None:
        self.on_done(attempt.worker, attempt.closure, done)

    def add(self, count: int = 1) -> list[Closure]:
        """Queues closures; those of one call are handed out together if there are no others."""
        closures = [_closure(i) for i in range(count)]
        with self.scheduler.quiet() if self.scheduler.is_idle() else contextlib.nullcontext():
            for closure in closures:
                self.scheduler.add(closure)
        return closures

    def wait_for(self, count: int) -> None:
        """Waits until so many closures are with workers."""
        eventually(lambda: len(self.sent) == count)

    def answer(self, answer: Any = DONE, worker: int | None = None) -> Closure:
        """Lets the worker that was given something first (or a certain one) answer; returns the closure."""
        found = eventually(lambda: next((sent for sent in self.sent if worker in (None, sent[0])), None))
        self.sent.remove(found)
        _, closure, future = found
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
        return closure

    def answer_all(self) -> None:
        """Lets all workers do everything there is."""
        while not self.scheduler.join(0.001) or self.sent:
            with contextlib.suppress(IndexError):
                self.answer() if self.sent else None
            self.scheduler.join(0)


def task_error(error: Exception) -> Exception:
    """What Ray makes of an error that a function raised."""
    return ray.exceptions.RayTaskError("run", repr(error), error)


def in_thread(fn: Callable[[], Any]) -> Future[Any]:
    """Calls a function in another thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(fn())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run).start()
    return future
