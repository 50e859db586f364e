"""Elastic worlds of threads: one of them ends at each operation on the board, and each row counts exactly once."""

from __future__ import annotations

import pytest

from replicax.group.membership import elastic_worlds
from replicax.group.membership.quorum import Life
from tests.group.membership.fake_worlds import Workers, rows_of
from tests.group.membership.fakes import Died

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
GIVER, SECOND, LOST = Life(0, 0), Life(1, 0), Life(2, 0)
_FIRST_WORLD = 12  # operations, about, until a worker is in the first world


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch):
    """Threads share JAX's client."""
    monkeypatch.setattr(elastic_worlds, "install_alone", lambda: None)
    monkeypatch.setattr(elastic_worlds.exchange, "begin_anew", lambda closes: None)
    monkeypatch.setattr(elastic_worlds, "tell_of_world", lambda *told: None)


def trained(dies):
    """Runs a job of three workers until all of them take part, after the deaths, and have made some more batches."""
    workers = Workers(3, dies)
    for index in range(3):
        workers.start(Life(index, 0))
    workers.beat()
    died = {life for life, (at, _) in dies.items() if at is not None}
    workers.until(lambda: len(workers.present()) == 3 and died <= {*workers.ended})
    newest = {max(life for life in workers.counts if life.index == index) for index in range(3)}
    workers.until(lambda: all(workers.counts[life].batches > 3 for life in newest))
    workers.end_soon()
    workers.join()
    return workers


def check(workers, where):
    errors = {life: error for life, error in workers.ended.items() if error is not None and not isinstance(error, Died)}
    assert not errors, where
    assert {len(each) for each in workers.worlds.values()} == {1}, (where, workers.worlds)
    for number, steps in workers.steps.items():
        assert {found for _, _, found in steps} == {int(rows_of(number).sum())}, (where, number, steps)
    expected = sum(int(rows_of(number).sum()) for number in range(workers.last))
    ended = [workers.counts[life] for life, error in workers.ended.items() if error is None]
    assert len(ended) == 3, where
    assert {(count.batches, count.total) for count in ended} == {(workers.last, expected)}, where


@pytest.mark.nightly
def test_without_a_loss_there_is_one_world():
    workers = trained({})
    check(workers, "undisturbed")
    assert list(workers.worlds.values()) == [{(0, 1, 2)}]


@pytest.mark.nightly
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", [1, *(pytest.param(at, marks=pytest.mark.nightly) for at in (2, 5, 9))])
def test_one_may_end_while_the_first_world_is_formed(at, after):
    check(trained({SECOND: (at, after)}), (at, after))
