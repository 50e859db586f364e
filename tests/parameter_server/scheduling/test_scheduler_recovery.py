"""The scheduler: steps compiled again, lost servers, quiet, and the end."""

from __future__ import annotations

import _thread
import threading
import time

import pytest

from replicax.errors import CancelledError, ContextError, ParameterServerLost
from replicax.parameter_server.actors.messages import ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.recovery import no_checkpoint
from tests.parameter_server.scheduling.party import LOST, SOON, eventually, in_thread

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

    interrupt = threading.Timer(0.1, _thread.interrupt_main)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt), it.scheduler.quiet():
        pytest.fail("two steps are under way")
    interrupt.join()
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
