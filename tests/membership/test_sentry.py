"""The sentry: what it tells the thread that trains about newcomers."""

from __future__ import annotations

import pytest

from replicax.membership.board import Board
from replicax.membership.decisions import Life, Sheet
from replicax.membership.elastic import Patience
from replicax.membership.sentry import Sentry
from tests.launch.conftest import wait_for
from tests.membership.fakes import MemoryStore

OWN, OTHER = Life(0, 0), Life(1, 0)


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
    made = Sentry(board, OWN, meeting, Patience(start=60.0, stall=60.0, pulse=60.0))
    yield made
    made.stop()


def test_a_newcomer_waits_until_a_roll_names_it(sentry, meeting):
    wait_for(sentry.somebody_knocks)
    # The thread looks about once a second; the thread that trains asks in each call, and must not take it in again.
    meeting.sheet = Sheet(2, 2, (OWN, OTHER), (b"", b""), (OWN,))
    assert not sentry.somebody_knocks()
