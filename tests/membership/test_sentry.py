"""The sentry: what it tells the thread that trains about newcomers."""

from __future__ import annotations

import threading

import pytest

from replicax.errors import MeetingError
from replicax.membership.board import Board
from replicax.membership.decisions import Life, Sheet
from replicax.membership.elastic import Patience
from replicax.membership.sentry import Sentry
from tests.launch.conftest import wait_for
from tests.membership.fakes import MemoryStore

OWN, OTHER = Life(0, 0), Life(1, 0)
PATIENCE = Patience(start=60.0, stall=60.0, pulse=60.0)


class Meeting:
    """A meeting of which only the last roll counts."""

    clique = None

    def __init__(self):
        self.sheet = Sheet(1, 1, (OWN,), (b"",), (OWN,))


@pytest.fixture
def meeting():
    return Meeting()


@pytest.fixture
def sentry(meeting):
    store = MemoryStore()
    board = Board(store)
    for life in (OWN, OTHER):
        board.enter(life)
        board.beat(life, 1, "")
    board.wait_with(OTHER, 0, b"new")
    made = Sentry(board, OWN, meeting, PATIENCE, lost=lambda: None)
    yield made
    made.stop()


def test_a_newcomer_waits_until_a_roll_names_it(sentry, meeting):
    wait_for(sentry.somebody_knocks)
    # The thread looks about once a second; the thread that trains asks in each call, and must not take it in again.
    meeting.sheet = Sheet(2, 2, (OWN, OTHER), (b"", b""), (OWN,))
    assert not sentry.somebody_knocks()


class OutOfReach(MemoryStore):
    """A store that cannot be asked any more."""

    def get(self, key, timeout_s):
        raise MeetingError("cut off")


def test_a_process_that_is_cut_off_from_the_board_ends(meeting):
    lost = threading.Event()
    made = Sentry(Board(OutOfReach()), OWN, meeting, PATIENCE, lost.set)
    assert lost.wait(20)
    made.stop()
