"""The job store of a meeting."""

import pytest

from replicax.contracts.group import Incarnation
from replicax.errors import MeetingError
from replicax.group.membership.job_store import JobStore, sheet_from, written
from replicax.group.membership.quorum import AGAIN, DONE, QuorumRecord
from tests.group.membership.fakes import MemoryStore

A, B = Incarnation(0, 0), Incarnation(1, 3)


@pytest.fixture
def job_store():
    return JobStore(MemoryStore())


def test_a_roll_is_read_as_it_was_written():
    record = QuorumRecord(7, 5, (A, B), (b"\xff:\n", b""), (B,), ((Incarnation(2, 1), 6),))
    assert sheet_from(written(record)) == record


def test_the_first_proposal_holds(job_store):
    first, second = QuorumRecord(1, 1, (A,), (b"",), (A,)), QuorumRecord(1, 1, (A, B), (b"", b""), (A, B))
    job_store.propose(first)
    job_store.propose(second)
    assert job_store.quorum(1, 0.0) == first
    assert job_store.latest() == first
    job_store.judge("1/0", DONE)
    job_store.judge("1/0", AGAIN)
    assert job_store.outcome("1/0", 0.0) == DONE


def test_notes_and_lives_are_told_apart(job_store):
    job_store.enter(A)
    job_store.enter(B)
    job_store.wait_with(B, 4, b"a:b")
    job_store.beat(B, 2, "idle")
    job_store.end(Incarnation(1, 2))
    assert job_store.newest() == {0: A, 1: B}
    assert job_store.notes() == {B: (4, b"a:b")}
    assert job_store.beats() == {B: b"2:idle"}
    assert job_store.gone() == {Incarnation(1, 2)}


def test_the_sums_of_a_roll_are_broken_off_at_the_next_one(job_store):
    job_store.judge("3/0", DONE)
    job_store.break_off(3)
    assert job_store.outcome("3/1", 0.0) == AGAIN
    job_store.break_off(3)
    assert job_store.outcome("3/2", 0.0) is None


def test_old_rolls_are_forgotten(job_store):
    for number in range(1, 60):
        job_store.propose(QuorumRecord(number, 1, (A,), (b"",), (A,)))
        job_store.come(f"{number}/0", 0, "float32[2]")
        job_store.tell_end(f"{number}/0", 0, "")
        job_store.judge(f"{number}/0", DONE)
    kept = {key.split("/")[1] for key, value in job_store.store._store.values.items() if "/" in key and value != b""}
    assert kept == {str(number) for number in range(10, 60)}
    assert {key for key, value in job_store.store._store.values.items() if value == b"" and "ended" not in key} == {
        f"roll/{number}" for number in range(1, 10)
    }


def test_who_was_cut_off_cannot_make_a_roll_anew_that_is_forgotten(job_store):
    for number in range(1, 60):
        job_store.propose(QuorumRecord(number, 1, (A,), (b"",), (A,)))
    job_store.propose(QuorumRecord(1, 1, (B,), (b"",), (B,)))
    job_store.propose(QuorumRecord(5, 1, (B,), (b"",), (B,)))
    assert job_store.latest().number == 59
    assert job_store.quorum(1, 0.0).incarnations == job_store.quorum(5, 0.0).incarnations == (A,)
    assert job_store.quorum(60, 0.0) is None


def test_the_newest_roll_is_found_though_its_proposer_was_lost_before_it_told(job_store):
    assert job_store.latest() is None
    for number in (1, 2, 3):
        record = QuorumRecord(number, 1, (A,), (b"",), (A,))
        job_store.store.put(f"roll/{number}", written(record))
        assert job_store.latest() == record


def test_the_outcome_that_holds_is_told(job_store):
    assert job_store.judge("1/0", DONE) == DONE
    assert job_store.judge("1/0", AGAIN) == DONE


READ = {
    "life/1": lambda job_store: job_store.newest(),
    "life/x": lambda job_store: job_store.newest(),
    "beat/1": lambda job_store: job_store.beats(),
    "note/1": lambda job_store: job_store.notes(),
    "gone/1/x": lambda job_store: job_store.gone(),
    "silent/1/1": lambda job_store: job_store.suspects(1),
    "done/1/1": lambda job_store: job_store.done(1),
    "passed/1": lambda job_store: job_store.passed(),
    "ending": lambda job_store: job_store.is_ending(0.0),
    "call/1": lambda job_store: job_store.called(1, 0.0),
    "roll/1": lambda job_store: job_store.quorum(1, 0.0),
    "at": lambda job_store: job_store.latest(),
    "here/1/0/1": lambda job_store: job_store.signatures("1/0"),
    "ended/1/0/1": lambda job_store: job_store.ended("1/0"),
    "outcome/1/0": lambda job_store: job_store.outcome("1/0", 0.0),
    "service/1": lambda job_store: job_store.store.get("service/1", 0.0),
}


@pytest.mark.parametrize("key", READ)
def test_what_a_stranger_has_written_is_told(key, monkeypatch):
    monkeypatch.setenv("REPLICAX_TOKEN", "secret")
    store = MemoryStore()
    store.put(key, b"7")
    with pytest.raises(MeetingError, match=f"'{key}' lacks the signature of this job: a stranger wrote it"):
        READ[key](JobStore(store))
