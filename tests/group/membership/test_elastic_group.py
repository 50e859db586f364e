"""Elastic worlds of threads: one of them ends at each operation on the job store, and each row counts exactly once."""

from __future__ import annotations

import pytest

from replicax.contracts.group import Incarnation
from replicax.group.membership import elastic_group
from tests.group.membership.fake_worlds import Workers, rows_of
from tests.group.membership.fakes import Died

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
GIVER, SECOND, LOST = Incarnation(0, 0), Incarnation(1, 0), Incarnation(2, 0)
_FIRST_WORLD = 12  # operations, about, until a worker is in the first world


@pytest.fixture(autouse=True)
def _in_threads(monkeypatch):
    """Threads share JAX's client."""
    monkeypatch.setattr(elastic_group, "install_alone", lambda: None)
    monkeypatch.setattr(elastic_group.exchange, "begin_anew", lambda closes: None)
    monkeypatch.setattr(elastic_group, "tell_of_world", lambda *told: None)


def trained(dies):
    """Runs a job of three workers until all of them take part, after the deaths, and have made some more batches."""
    workers = Workers(3, dies)
    for index in range(3):
        workers.start(Incarnation(index, 0))
    workers.beat()
    died = {incarnation for incarnation, (at, _) in dies.items() if at is not None}
    workers.until(lambda: len(workers.present()) == 3 and died <= {*workers.ended})
    newest = {max(incarnation for incarnation in workers.counts if incarnation.index == index) for index in range(3)}
    workers.until(lambda: all(workers.counts[incarnation].batches > 3 for incarnation in newest))
    workers.end_soon()
    workers.join()
    return workers


def check(workers, where):
    errors = {
        incarnation: error
        for incarnation, error in workers.ended.items()
        if error is not None and not isinstance(error, Died)
    }
    assert not errors, where
    assert {len(each) for each in workers.worlds.values()} == {1}, (where, workers.worlds)
    for number, steps in workers.steps.items():
        assert {found for _, _, found in steps} == {int(rows_of(number).sum())}, (where, number, steps)
    expected = sum(int(rows_of(number).sum()) for number in range(workers.last))
    ended = [workers.counts[incarnation] for incarnation, error in workers.ended.items() if error is None]
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
