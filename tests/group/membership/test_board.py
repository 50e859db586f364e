"""The board of a meeting."""

import pytest

from replicax.errors import MeetingError
from replicax.group.membership.job_store import Board, sheet_from, written
from replicax.group.membership.quorum import AGAIN, DONE, Life, Sheet
from tests.group.membership.fakes import MemoryStore

A, B = Life(0, 0), Life(1, 3)


@pytest.fixture
def board():
    return Board(MemoryStore())


def test_a_roll_is_read_as_it_was_written():
    sheet = Sheet(7, 5, (A, B), (b"\xff:\n", b""), (B,), ((Life(2, 1), 6),))
    assert sheet_from(written(sheet)) == sheet


def test_the_first_proposal_holds(board):
    first, second = Sheet(1, 1, (A,), (b"",), (A,)), Sheet(1, 1, (A, B), (b"", b""), (A, B))
    board.propose(first)
    board.propose(second)
    assert board.roll(1, 0.0) == first
    assert board.latest() == first
    board.judge("1/0", DONE)
    board.judge("1/0", AGAIN)
    assert board.outcome("1/0", 0.0) == DONE


def test_notes_and_lives_are_told_apart(board):
    board.enter(A)
    board.enter(B)
    board.wait_with(B, 4, b"a:b")
    board.beat(B, 2, "idle")
    board.end(Life(1, 2))
    assert board.newest() == {0: A, 1: B}
    assert board.notes() == {B: (4, b"a:b")}
    assert board.beats() == {B: b"2:idle"}
    assert board.gone() == {Life(1, 2)}


def test_the_sums_of_a_roll_are_broken_off_at_the_next_one(board):
    board.judge("3/0", DONE)
    board.break_off(3)
    assert board.outcome("3/1", 0.0) == AGAIN
    board.break_off(3)
    assert board.outcome("3/2", 0.0) is None


def test_old_rolls_are_forgotten(board):
    for number in range(1, 60):
        board.propose(Sheet(number, 1, (A,), (b"",), (A,)))
        board.come(f"{number}/0", 0, "float32[2]")
        board.tell_end(f"{number}/0", 0, "")
        board.judge(f"{number}/0", DONE)
    kept = {key.split("/")[1] for key, value in board.store._store.values.items() if "/" in key and value != b""}
    assert kept == {str(number) for number in range(10, 60)}
    assert {key for key, value in board.store._store.values.items() if value == b"" and "ended" not in key} == {
        f"roll/{number}" for number in range(1, 10)
    }


def test_who_was_cut_off_cannot_make_a_roll_anew_that_is_forgotten(board):
    for number in range(1, 60):
        board.propose(Sheet(number, 1, (A,), (b"",), (A,)))
    board.propose(Sheet(1, 1, (B,), (b"",), (B,)))
    board.propose(Sheet(5, 1, (B,), (b"",), (B,)))
    assert board.latest().number == 59
    assert board.roll(1, 0.0).lives == board.roll(5, 0.0).lives == (A,)
    assert board.roll(60, 0.0) is None


def test_the_newest_roll_is_found_though_its_proposer_was_lost_before_it_told(board):
    assert board.latest() is None
    for number in (1, 2, 3):
        sheet = Sheet(number, 1, (A,), (b"",), (A,))
        board.store.put(f"roll/{number}", written(sheet))
        assert board.latest() == sheet


def test_the_outcome_that_holds_is_told(board):
    assert board.judge("1/0", DONE) == DONE
    assert board.judge("1/0", AGAIN) == DONE


READ = {
    "life/1": lambda board: board.newest(),
    "life/x": lambda board: board.newest(),
    "beat/1": lambda board: board.beats(),
    "note/1": lambda board: board.notes(),
    "gone/1/x": lambda board: board.gone(),
    "silent/1/1": lambda board: board.suspects(1),
    "done/1/1": lambda board: board.done(1),
    "passed/1": lambda board: board.passed(),
    "ending": lambda board: board.is_ending(0.0),
    "call/1": lambda board: board.called(1, 0.0),
    "roll/1": lambda board: board.roll(1, 0.0),
    "at": lambda board: board.latest(),
    "here/1/0/1": lambda board: board.signatures("1/0"),
    "ended/1/0/1": lambda board: board.ended("1/0"),
    "outcome/1/0": lambda board: board.outcome("1/0", 0.0),
    "service/1": lambda board: board.store.get("service/1", 0.0),
}


@pytest.mark.parametrize("key", READ)
def test_what_a_stranger_has_written_is_told(key, monkeypatch):
    monkeypatch.setenv("REPLICAX_TOKEN", "secret")
    store = MemoryStore()
    store.put(key, b"7")
    with pytest.raises(MeetingError, match=f"'{key}' lacks the signature of this job: a stranger wrote it"):
        READ[key](Board(store))
