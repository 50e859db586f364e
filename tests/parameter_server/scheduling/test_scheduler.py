"""The scheduler, with workers that are a list of futures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import ray

import replicax.parameter_server.scheduling.scheduler as scheduler_module
from replicax.errors import CancelledError, ClusterTimeoutError, ContextError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import Done, Report, ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.closures import Closure
from replicax.parameter_server.scheduling.ledger import Attempt, Ledger
from replicax.parameter_server.scheduling.recovery import no_checkpoint
from replicax.parameter_server.scheduling.scheduler import Scheduler
from replicax.parameter_server.scheduling.state import SchedulerState
from replicax.parameter_server.scheduling.watch import SERVER, ActorId, Timeouts
from replicax.program.pytrees import Structure

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
        stall_timeout: float = 1000.0,
        start_timeout: float = 1000.0,
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
        state = SchedulerState.of(Ledger.of(workers, **options), servers, Timeouts(stall_timeout, start_timeout))
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

    def recover(self, reason: str, starting: Callable[[int], None]) -> None:
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


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch):
    monkeypatch.setattr(scheduler_module, "_TICK_S", 0.02)


@pytest.fixture
def party():
    parties = []

    def make(**options):
        parties.append(Party(**options))
        return parties[-1]

    yield make
    for each in parties:
        each.scheduler.close()


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


# What goes well.


def test_everything_that_is_queued_is_done(party):
    it = party()
    closures = it.add(20)
    it.answer_all()
    assert it.scheduler.join(0)
    assert it.scheduler.is_idle()
    assert {closure.value.fetch(0) for closure in closures} >= {(0, "step0"), (1, "step1")}
    it.scheduler.raise_error()


def test_a_worker_has_two_steps_at_once(party):
    it = party(workers=2)
    it.add(10)
    it.wait_for(4)
    time.sleep(0.05)
    assert [worker for worker, _, _ in it.sent] == [0, 1, 0, 1]
    queue = it.scheduler.queue()
    assert (queue.waiting, queue.under_way, queue.ready_workers) == (6, 4, 2)


def test_join_can_have_an_end(party):
    it = party()
    it.add()
    start = time.monotonic()
    assert not it.scheduler.join(0.05)
    assert time.monotonic() - start < 5
    assert not it.scheduler.is_idle()
    it.answer()
    assert it.scheduler.join(SOON)


def test_a_full_queue_holds_the_caller_back(party):
    it = party(workers=1, max_queued=2)
    it.add(2)
    it.wait_for(2)
    it.add(2)
    added = in_thread(it.add)
    time.sleep(0.1)
    assert not added.done()
    it.answer()
    assert added.result(SOON)
    it.answer_all()


# Errors of functions.


def test_the_first_error_cancels_what_is_queued_is_raised_once_and_then_forgotten(party):
    it = party(workers=2)
    closures = it.add(6)
    it.wait_for(4)
    failed = it.answer(task_error(ValueError("first")))
    for error in (task_error(KeyError("second")), DONE, DONE):
        it.answer(error)
    assert it.scheduler.join(SOON)
    with pytest.raises(ValueError, match="first"):
        it.scheduler.raise_error()
    it.scheduler.raise_error()
    assert it.scheduler.is_idle()
    with pytest.raises(ValueError, match="first"):
        failed.value.fetch(0)
    with pytest.raises(KeyError):
        closures[1].value.fetch(0)
    for cancelled in closures[4:]:
        with pytest.raises(CancelledError, match=r"was not run, because another one failed before it.*first"):
            cancelled.value.fetch(0)
    (again,) = it.add()
    it.answer()
    assert again.value.fetch(SOON)


def test_fetching_an_error_does_not_clear_it(party):
    it = party()
    (closure,) = it.add()
    it.answer(task_error(ValueError("no")))
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            closure.value.fetch(SOON)
    with pytest.raises(ValueError, match="no"):
        it.scheduler.raise_error()


def test_adding_raises_an_earlier_error_and_adds_nothing(party):
    it = party(workers=1)
    (closure,) = it.add()
    it.answer(task_error(ValueError("no")))
    eventually(lambda: closure.value.is_ready)
    with pytest.raises(ValueError, match="no"):
        it.add()
    assert it.scheduler.is_idle()
    it.add()


def test_an_error_is_raised_only_when_nothing_is_under_way(party):
    it = party(workers=2)
    it.add(2)
    it.wait_for(2)
    closure = it.answer(task_error(ValueError("no")))
    eventually(lambda: closure.value.is_ready)
    raised = in_thread(it.scheduler.raise_error)
    time.sleep(0.1)
    assert not raised.done()
    it.answer()
    assert isinstance(raised.exception(SOON), ValueError)


def test_of_several_threads_one_gets_the_error(party):
    it = party(workers=2)
    it.add(2)
    it.wait_for(2)
    closure = it.answer(task_error(ValueError("no")))
    eventually(lambda: closure.value.is_ready)
    raised = [in_thread(it.scheduler.raise_error) for _ in range(3)]
    time.sleep(0.05)
    it.answer()
    errors = [each.exception(SOON) for each in raised]
    assert [isinstance(error, ValueError) for error in errors if error is not None] == [True]


def test_an_error_frees_a_caller_that_waits_for_room(party):
    it = party(workers=1, max_queued=2)
    it.add(2)
    it.wait_for(2)
    it.add(2)
    added = in_thread(it.add)
    it.answer(task_error(ValueError("no")))
    it.answer()
    assert isinstance(added.exception(SOON), ValueError)


def test_after_an_error_a_lost_workers_steps_are_cancelled_too(party):
    it = party(workers=2)
    it.add(2)
    it.wait_for(2)
    it.answer(task_error(ValueError("no")), worker=0)
    lost = it.answer(LOST, worker=1)
    with pytest.raises(CancelledError):
        lost.value.fetch(SOON)
    with pytest.raises(ValueError, match="no"):
        it.scheduler.raise_error()
    assert it.sent == []


# Lost workers.


def test_what_a_lost_worker_had_is_done_by_another(party):
    it = party(workers=2)
    it.replaces = False
    closures = it.add(4)
    it.wait_for(4)
    for _ in range(2):
        it.answer(LOST, worker=0)
    eventually(lambda: it.events)
    it.answer_all()
    assert it.events[0] == ("replaced", 0)
    assert {closure.value.fetch(0)[0] for closure in closures} == {1}
    assert [it.given.count(closure) for closure in closures] == [2, 1, 2, 1]
    it.scheduler.raise_error()


def test_a_late_answer_of_a_lost_worker_counts_no_more(party):
    it = party(workers=1)
    closures = it.add(2)
    it.wait_for(2)
    late = it.sent[1][2]
    it.answer(LOST)
    eventually(lambda: len(it.sent) == 3)  # the replaced worker, of the same number, has both again
    late.set_exception(LOST)
    it.sent.remove(next(sent for sent in it.sent if sent[2] is late))
    time.sleep(0.05)
    assert it.events == [("replaced", 0)]
    it.answer_all()
    assert all(closure.value.fetch(0) for closure in closures)
    assert [it.given.count(closure) for closure in closures] == [2, 2]


def test_a_function_that_kills_its_workers_does_not_go_on_for_ever(party):
    it = party(workers=1, depth=1)
    deadly, other = it.add(2)
    for _ in range(10):
        it.answer(LOST)
    with pytest.raises(WorkerLostError, match="step0 was given to 10 workers, and each of them was lost"):
        deadly.value.fetch(SOON)
    with pytest.raises(CancelledError):
        other.value.fetch(SOON)
    with pytest.raises(WorkerLostError):
        it.scheduler.raise_error()
    eventually(lambda: len(it.events) == 10)
    it.add()
    it.answer_all()


def test_a_hung_worker_is_ended_even_while_others_are_busy(party):
    it = party(workers=2, depth=1, stall_timeout=0.2)
    closures = it.add(500)
    it.wait_for(2)
    deadline = time.monotonic() + SOON
    while not it.events and time.monotonic() < deadline:
        if any(sent[0] == 1 for sent in it.sent):
            it.answer(worker=1)
        time.sleep(0.005)
    eventually(lambda: len(it.events) == 2)
    assert it.events == [("ended", 0), ("replaced", 0)]
    eventually(lambda: it.given.count(closures[0]) == 2)


def test_a_worker_that_waits_for_a_hung_server_is_not_ended(party):
    it = party(workers=1, servers=1, stall_timeout=0.4)
    it.on_recover = lambda reason: it.server_starts(0)
    it.silent.add(ActorId("ps", 0))
    it.add()
    eventually(lambda: it.events)
    assert it.events == [("ended", 0)]  # the server
    it.silent.clear()
    it.answer(ServerLost("gone"))
    it.answer_all()
    assert it.events == [("ended", 0)]
    assert it.scheduler.join(SOON)


def test_an_idle_worker_is_watched(party):
    it = party(workers=2, stall_timeout=0.2)
    it.silent.add(ActorId("worker", 1))
    eventually(lambda: len(it.events) >= 2)
    assert it.events == [("ended", 1), ("replaced", 1)]
    eventually(lambda: it.scheduler.queue().ready_workers == 2)


def test_an_idle_server_is_watched(party):
    it = party(workers=1, servers=2, stall_timeout=0.2)
    reasons = []

    def recover(reason):
        reasons.append(reason)
        it.silent.clear()
        it.server_starts(1)

    it.on_recover = recover
    it.silent.add(ActorId("ps", 1))
    eventually(lambda: reasons)
    assert "ps:1 has gone" in reasons[0]
    it.add(3)
    it.answer_all()
    assert len(reasons) == 1


def test_join_ends_when_no_worker_comes_any_more(party):
    it = party(workers=2, stall_timeout=0.2, start_timeout=0.2)
    it.replaces = False
    (first, *others) = it.add(5)
    for worker in (0, 1):
        it.answer(LOST, worker=worker)
    assert it.scheduler.join(SOON)
    with pytest.raises(ClusterTimeoutError, match=r"worker:0, worker:1.*worker:0 has gone.*no room"):
        it.scheduler.raise_error()
    for closure in (first, *others):
        with pytest.raises(CancelledError):
            closure.value.fetch(0)
    it.replaces = True  # Their nodes are back.
    it.add()
    eventually(lambda: it.sent)
    it.answer_all()


def test_a_server_that_is_lost_while_others_are_recovered_is_recovered_too(party):
    it = party(workers=1, servers=2, stall_timeout=0.2)
    reasons = []

    def recover(reason):
        reasons.append(reason)
        it.server_starts(0)
        if len(reasons) == 1:
            it.silent.add(ActorId("ps", 1))
            eventually(lambda: ("ended", 1) in it.events)
        else:
            it.silent.discard(ActorId("ps", 1))
            it.server_starts(1)

    it.on_recover = recover
    it.add()
    it.answer(ServerLost("gone"))
    it.answer()
    assert it.scheduler.join(SOON)
    assert len(reasons) == 2
    it.scheduler.raise_error()


def test_whoever_holds_the_quiet_and_loses_a_server_does_not_wait_for_ever(party):
    it = party(workers=1, servers=1)
    it.on_recover = it.events.append

    def copy():
        with it.scheduler.quiet():
            return it.scheduler.recover_servers("gone")

    assert in_thread(copy).result(SOON)
    assert it.events == ["gone"]


def test_whoever_holds_the_quiet_is_not_disturbed_by_a_recovery_that_another_asks_for(party):
    it = party(workers=1, servers=1)
    it.on_recover = it.events.append
    with it.scheduler.quiet():
        other = in_thread(lambda: it.scheduler.recover_servers("gone"))
        time.sleep(0.1)
        assert it.events == []
    assert other.result(SOON)
    assert it.events == ["gone"]


def test_a_server_lost_while_a_step_is_compiled_is_recovered(party):
    it = party(workers=1, servers=1)

    def retrace(worker, closure, iterator):
        raise ParameterServerLost("gone")

    it.on_retrace, it.on_recover = retrace, it.events.append
    (closure,) = it.add()
    it.answer(UnexpectedBatch(7))
    eventually(lambda: it.events)
    it.answer()
    assert closure.value.fetch(SOON)
    it.scheduler.raise_error()


def test_those_who_wait_are_told_when_calls_of_ray_do_not_return(party):
    it = party(workers=1, stall_timeout=0.2, start_timeout=0.2)
    go_on = threading.Event()
    it.drop_unused = lambda: go_on.wait(SOON)
    it.add()
    with pytest.raises(ClusterTimeoutError, match="whose calls do not return"):
        it.scheduler.join(None)
    go_on.set()


# Other batches.


def test_a_step_is_compiled_for_the_batch_that_a_worker_has(party):
    it = party(workers=1)
    asked = []
    it.on_retrace = lambda worker, closure, iterator: asked.append((worker, closure, iterator))
    (closure,) = it.add()
    it.answer(UnexpectedBatch(7))
    it.answer()
    assert closure.value.fetch(SOON) == (0, "step0")
    assert asked == [(0, closure, 7)]


def test_compiling_may_fail(party):
    it = party(workers=1)

    def retrace(worker, closure, iterator):
        raise TypeError("no such shape")

    it.on_retrace = retrace
    (closure,) = it.add()
    it.answer(UnexpectedBatch(7))
    with pytest.raises(TypeError, match="no such shape"):
        closure.value.fetch(SOON)
    with pytest.raises(TypeError):
        it.scheduler.raise_error()


def test_compiling_may_need_quiet(party):
    it = party(workers=2)

    def retrace(worker, closure, iterator):
        with it.scheduler.quiet():
            it.events.append("quiet")

    it.on_retrace = retrace
    it.add(2)
    it.wait_for(2)
    it.answer(UnexpectedBatch(7))
    time.sleep(0.05)
    assert it.events == []
    it.answer()
    eventually(lambda: it.events == ["quiet"])
    it.answer_all()


def test_a_worker_may_be_lost_while_its_step_is_compiled(party):
    it = party(workers=1)
    begun, go_on = threading.Event(), threading.Event()

    def retrace(worker, closure, iterator):
        begun.set()
        assert go_on.wait(SOON)

    it.on_retrace = retrace
    closures = it.add(2)
    it.wait_for(2)
    it.answer(UnexpectedBatch(7))
    assert begun.wait(SOON)
    it.answer(LOST)
    it.wait_for(2)
    go_on.set()
    time.sleep(0.05)
    assert len(it.sent) == 2  # not a second time by the compilation that is through now
    it.answer_all()
    assert all(closure.value.is_ready for closure in closures)


# Lost servers.


def test_lost_servers_are_dealt_with_when_nothing_is_under_way(party):
    it = party(workers=2)
    reasons = []
    it.on_recover = lambda reason: reasons.append((reason, it.scheduler.queue().under_way))
    closures = it.add(4)
    it.wait_for(4)
    it.answer(ServerLost("gone"))
    it.answer(ServerLost("gone too"))
    it.answer()
    time.sleep(0.05)
    assert reasons == []
    it.answer()
    it.answer_all()
    assert reasons == [("gone", 0)]
    assert all(closure.value.is_ready for closure in closures)
    it.scheduler.raise_error()


def test_without_a_checkpoint_a_lost_server_ends_training(party):
    it = party(workers=1)

    def lost_servers(reason):
        raise no_checkpoint(reason)

    it.on_recover = lost_servers
    closures = it.add(3)
    it.wait_for(2)
    it.answer(ServerLost("It is gone."))
    it.answer()
    for _ in range(2):
        it.scheduler.join(SOON)
        with pytest.raises(ParameterServerLost, match=r"CheckpointManager.*It is gone\."):
            it.scheduler.raise_error()
    with pytest.raises(ParameterServerLost):
        it.add()
    with pytest.raises(CancelledError, match="Training cannot go on"):
        closures[2].value.fetch(SOON)


# Quiet.


def test_in_quiet_nothing_is_under_way(party):
    it = party(workers=1)
    it.add(4)
    it.wait_for(2)
    entered = []

    def be_quiet():
        with it.scheduler.quiet():
            entered.append(it.scheduler.queue())
            time.sleep(0.05)
            entered.append(it.scheduler.queue())

    quiet = in_thread(be_quiet)
    time.sleep(0.05)
    assert entered == []
    it.answer()
    it.answer()
    quiet.result(SOON)
    assert [(queue.under_way, queue.waiting) for queue in entered] == [(0, 2)] * 2
    it.answer_all()


def test_quiet_lasts_until_the_last_one_has_ended_it(party):
    it = party(workers=1)
    with it.scheduler.quiet():
        with it.scheduler.quiet():
            it.add()
        time.sleep(0.05)
        assert it.sent == []
    it.answer_all()


def test_quiet_and_the_recovery_of_servers_exclude_each_other(party):
    it = party(workers=1)
    recovering, go_on = threading.Event(), threading.Event()

    def lost_servers(reason):
        recovering.set()
        assert go_on.wait(SOON)
        it.events.append("recovered")

    def be_quiet():
        with it.scheduler.quiet():
            it.events.append("quiet")
            time.sleep(0.1)
            assert it.sent == []

    it.on_recover = lost_servers
    it.add()
    it.answer(ServerLost("gone"))
    assert recovering.wait(SOON)
    quiet = in_thread(be_quiet)
    time.sleep(0.05)
    go_on.set()
    quiet.result(SOON)
    assert it.events == ["recovered", "quiet"]
    it.answer_all()


def test_the_recovery_itself_may_ask_for_quiet(party):
    it = party(workers=1)

    def lost_servers(reason):
        with it.scheduler.quiet():
            it.events.append("quiet")

    it.on_recover = lost_servers
    it.add()
    it.answer(ServerLost("gone"))
    it.answer_all()
    assert it.events == ["quiet"]


def test_an_interrupted_quiet_is_over(party):
    it = party(workers=1)
    it.add(3)
    it.wait_for(2)

    def interrupted(*_: object):
        raise KeyboardInterrupt

    wait, it.scheduler._wait = it.scheduler._wait, interrupted
    with pytest.raises(KeyboardInterrupt), it.scheduler.quiet():
        pass
    it.scheduler._wait = wait
    it.answer_all()


# The end.


def test_closing_cancels_what_is_left(party):
    it = party(workers=1)
    closures = it.add(3)
    it.wait_for(2)
    joined = in_thread(lambda: (it.scheduler.join(None), it.scheduler.raise_error()))
    it.scheduler.close()
    it.scheduler.close()
    for closure in closures:
        with pytest.raises(CancelledError, match="closed before all functions had run"):
            closure.value.fetch(SOON)
    assert isinstance(joined.exception(SOON), CancelledError)
    with pytest.raises(ContextError, match="closed"):
        it.add()


def test_closing_when_all_is_done_leaves_nothing_to_raise(party):
    it = party(workers=1)
    (closure,) = it.add()
    it.answer_all()
    it.scheduler.close()
    assert it.scheduler.join(None)
    it.scheduler.raise_error()
    assert closure.value.fetch(0)


def test_an_error_of_the_scheduler_itself_is_not_waited_for_in_vain(party):
    it = party(workers=1)
    it.on_done = lambda worker, closure, done: 1 / 0
    it.add(2)
    failed = it.answer()
    it.scheduler.join(SOON)
    with pytest.raises(ZeroDivisionError):
        it.scheduler.raise_error()
    with pytest.raises(ZeroDivisionError):
        failed.value.fetch(SOON)
