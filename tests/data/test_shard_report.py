from __future__ import annotations

import grain
import numpy as np
import pytest

from replicax.data import DistributedDataset, InputOptions
from replicax.errors import ArgumentError
from tests.data.fake_workers import Team


def reports(team, source_of, batch_size=None, **options):
    def run(workers):
        dataset = DistributedDataset(
            source_of(workers.index),
            num_replicas=sum(workers.replicas),
            mesh_for=None,
            options=InputOptions(**options),
            batch_size=batch_size,
            workers=workers,
        )
        return dataset.shard_report()

    return team.each(run)


@pytest.fixture(autouse=True)
def one_numbering(monkeypatch):
    """Threads cannot take the numbers of passes in turn, as processes do: here each call is number 0."""
    monkeypatch.setattr("replicax.data.worker_channel.PassNumbers.take", lambda self: 0)


def lines(found):
    assert all(each == found[0] for each in found), found
    return [line.split(": ")[1] for line in found[0].splitlines()]


def test_shares_of_the_same_batches():
    found = lines(reports(Team([2, 1]), lambda _: [np.arange(9), np.arange(9, 13)]))
    assert found == ["10 rows, 2 batches, overlap 0, missing 0", "3 rows, 1 batches, overlap 0, missing 0"]


def test_rows_that_are_dropped_are_missing():
    found = lines(reports(Team([1, 1]), lambda _: np.arange(9), batch_size=4, remainder="drop"))
    assert found == ["4 rows, 2 batches, overlap 0, missing 1"] * 2


def test_different_shuffles_overlap():
    orders = [np.arange(8), np.arange(8)[::-1].copy()]
    found = lines(reports(Team([1, 1]), lambda worker: [orders[worker]]))
    assert found == ["4 rows, 1 batches, overlap 4, missing 4"] * 2


def test_rows_are_told_apart_by_all_their_arrays():
    orders = [np.arange(8), np.arange(8)[::-1].copy()]
    found = lines(reports(Team([1, 1]), lambda worker: [{"x": np.zeros(8), "y": orders[worker]}]))
    assert found == ["4 rows, 1 batches, overlap 4, missing 4"] * 2


def test_rows_that_the_data_has_twice_are_no_overlap():
    found = lines(reports(Team([1, 1]), lambda _: [np.zeros((6, 2))]))
    assert found == ["3 rows, 1 batches, overlap 0, missing 0"] * 2


@pytest.mark.parametrize(
    ("team", "batch_size", "policy", "warns"),
    [([1, 1], None, "off", True), ([1, 1], 4, "off", False), ([1, 1], None, "data", False), ([2], None, "off", False)],
)
def test_batches_of_a_workers_own_are_told_to_be_divided(caplog, team, batch_size, policy, warns):
    source = np.arange(8) if batch_size else [np.arange(4), np.arange(4)]
    with caplog.at_level("WARNING"):
        found = lines(reports(Team(team), lambda _: source, batch_size=batch_size, auto_shard_policy=policy))
    assert (
        "takes 1/2 of a batch from each of the 2 workers, and there are 2 steps for each batch" in caplog.text
    ) is warns
    if warns:
        assert all("8 rows, 4 batches" in line for line in found)  # The warning is right.


def test_own_data_that_nobody_has_sharded():
    found = lines(reports(Team([1, 1]), lambda worker: [np.arange(4 + worker)], auto_shard_policy="off"))
    assert found == ["4 rows, 2 batches, overlap 4, missing unknown", "5 rows, 2 batches, overlap 4, missing unknown"]


def test_grain_is_sharded_by_a_slice():
    source = grain.MapDataset.source(np.arange(21)).batch(4)
    found = lines(reports(Team([1, 1]), lambda _: source, auto_shard_policy="hint"))
    assert found == ["12 rows, 6 batches, overlap 0, missing 0", "9 rows, 5 batches, overlap 0, missing 0"]


def test_an_iterator_would_be_used_up():
    with pytest.raises(ArgumentError, match="iterator"):
        DistributedDataset(iter([np.arange(3)]), num_replicas=1, mesh_for=None).shard_report()
