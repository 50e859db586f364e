"""The scheduler when workers are lost or hang."""

from __future__ import annotations

import threading
import time

import pytest

from replicax.errors import CancelledError, ClusterTimeoutError, ParameterServerLost, WorkerLostError
from replicax.parameter_server.actors.messages import ServerLost, UnexpectedBatch
from replicax.parameter_server.scheduling.watch import ActorId
from tests.parameter_server.scheduling.party import LOST, SOON, eventually, in_thread

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
    it = party(workers=2, depth=1, stall=0.2)
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
    it = party(workers=1, servers=1, stall=0.4)
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
    it = party(workers=2, stall=0.2)
    it.silent.add(ActorId("worker", 1))
    eventually(lambda: len(it.events) >= 2)
    assert it.events == [("ended", 1), ("replaced", 1)]
    eventually(lambda: it.scheduler.queue().ready_workers == 2)


def test_an_idle_server_is_watched(party):
    it = party(workers=1, servers=2, stall=0.2)
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
    it = party(workers=2, stall=0.2, start=0.2)
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
    it = party(workers=1, servers=2, stall=0.2)
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
    it = party(workers=1, stall=0.2, start=0.2)
    go_on = threading.Event()
    it.drop_unused = lambda: go_on.wait(SOON)
    it.add()
    with pytest.raises(ClusterTimeoutError, match="whose calls do not return"):
        it.scheduler.join(None)
    go_on.set()
