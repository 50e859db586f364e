"""The scheduler: what goes well, and errors of functions."""

from __future__ import annotations

import time

import pytest

from replicax.errors import CancelledError
from tests.parameter_server.scheduling.party import DONE, LOST, SOON, eventually, in_thread, task_error

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
