"""Notices that a worker is to end: it leaves alone, or all of them end."""

import os
import signal
import threading
import time

import pytest

from replicax.group.membership.job_store import JobStore
from replicax.group.membership.preemption import Preemption, watch_sigterm
from tests.group.membership.fakes import MemoryStore


class Told:
    """Keeps what was told, and waits for it."""

    def __init__(self):
        self.told, self.came = [], threading.Event()

    def __call__(self, *what):
        self.told.append(what)
        self.came.set()

    def wait(self):
        assert self.came.wait(10)
        return self.told


@pytest.fixture
def job_store():
    return JobStore(MemoryStore())


class Member:
    """A worker."""

    may_leave = True

    def __init__(self):
        self.leave_soon = Told()


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def preemption(job_store, member):
    made = Preemption(job_store, member)
    made.left = member.leave_soon
    yield made
    made.stop()


def test_a_worker_that_is_preempted_leaves(preemption):
    preemption.end = Told()
    preemption.notice("the machine is taken away")
    assert preemption.left.wait() == [("the machine is taken away",)]
    assert preemption.end.told == []


def test_nobody_leaves_alone_when_all_of_them_end(preemption, job_store):
    preemption.end = Told()
    preemption.notice("preempted")
    time.sleep(0.1)
    job_store.tell_ending()  # A little late.
    assert preemption.end.wait() == [()]
    assert preemption.left.told == []


def test_where_all_save_the_job_ends_if_too_few_would_be_left(preemption, job_store, member):
    preemption.saves, member.may_leave = True, False
    preemption.notice("preempted")
    assert job_store.is_ending(10)
    assert preemption.left.told == []


def test_where_nobody_saves_a_worker_waits_until_it_may_leave(preemption, job_store, member):
    member.may_leave = False
    preemption.notice("preempted")
    assert preemption.left.wait() == [("preempted",)]
    assert not job_store.is_ending(0.01)


def test_sigterm_is_a_notice_once(preemption):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        watch_sigterm(preemption)
        os.kill(os.getpid(), signal.SIGTERM)
        assert preemption.left.wait() == [("preempted: SIGTERM",)]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_handler_of_the_script_stays(preemption):
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        watch_sigterm(preemption)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
