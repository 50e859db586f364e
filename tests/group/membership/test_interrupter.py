"""The interrupter: what it tells the thread that trains about newcomers."""

from __future__ import annotations

import time
from queue import SimpleQueue

import pytest

from replicax.cluster.patience import Patience
from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.membership import interrupter as sentry_module
from replicax.group.membership.interrupter import CollectiveInterrupter
from replicax.group.membership.job_store import JobStore
from replicax.group.membership.quorum import QuorumRecord
from tests.group.membership.fakes import MemoryStore
from tests.job.launching.conftest import wait_for

OWN, OTHER = Incarnation(0, 0), Incarnation(1, 0)
PATIENCE = Patience(start=60.0, silence=60.0, end=10.0, again=0.1, stall=60.0)


class Meeting:
    """A meeting of which only the last quorum counts."""

    clique = None

    def __init__(self):
        self.record = QuorumRecord(1, 1, (OWN,), (b"",), (OWN,))


@pytest.fixture
def meeting():
    return Meeting()


@pytest.fixture
def interrupter(meeting):
    store = MemoryStore()
    job_store = JobStore(store)
    for incarnation in (OWN, OTHER):
        job_store.enter(incarnation)
        job_store.beat(incarnation, 1, "")
    job_store.wait_with(OTHER, 0, b"new")
    made = CollectiveInterrupter(job_store, OWN, meeting, PATIENCE, lost=lambda why: None)
    yield made
    made.stop()


def test_a_newcomer_waits_until_a_roll_names_it(interrupter, meeting):
    wait_for(interrupter.somebody_knocks)
    # The thread looks ten times a second; the thread that trains asks in each call, and must not take it in again.
    meeting.record = QuorumRecord(2, 2, (OWN, OTHER), (b"", b""), (OWN,))
    assert not interrupter.somebody_knocks()


def test_the_launcher_is_told_of_a_newcomer_that_is_stopped_before_it_takes_part(meeting, monkeypatch):
    told = SimpleQueue()
    monkeypatch.setattr(sentry_module, "tell_launcher", told.put)
    store = MemoryStore()
    job_store = JobStore(store)
    for incarnation in (OWN, OTHER, Incarnation(2, 0), Incarnation(2, 1)):
        job_store.enter(incarnation)
    for incarnation in (Incarnation(2, 0), Incarnation(2, 1)):  # One is over, and its successor has ended.
        job_store.end(incarnation)
    made = CollectiveInterrupter(
        job_store, OWN, meeting, PATIENCE._replace(silence=0.1, again=0.1), lost=lambda why: None
    )
    assert told.get(timeout=20) == {"silent": "worker 1", "life": 0}
    time.sleep(0.5)  # It looks ten times a second.
    made.stop()
    assert told.empty()


class OutOfReach(MemoryStore):
    """A store that cannot be asked any more."""

    def get(self, key, timeout_s):
        raise MeetingError("cut off")


def test_a_process_that_is_cut_off_from_the_board_ends(meeting):
    lost = SimpleQueue()
    made = CollectiveInterrupter(JobStore(OutOfReach()), OWN, meeting, PATIENCE, lost.put)
    assert str(lost.get(timeout=20)) == "cut off"
    made.stop()


def test_a_process_ends_where_a_stranger_has_written_to_the_board(meeting, monkeypatch):
    monkeypatch.setenv("REPLICAX_TOKEN", "secret")
    lost, store = SimpleQueue(), MemoryStore()
    store.put("life/1", b"0")
    made = CollectiveInterrupter(JobStore(store), OWN, meeting, PATIENCE, lost.put)
    assert "a stranger wrote it" in str(lost.get(timeout=20))
    made.stop()
