from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from replicax.data.batch_split import group_batches, part_of, split_batch, split_group, usable_replicas
from replicax.errors import BatchError

ROWS = st.integers(1, 17)
REPLICAS = st.integers(1, 8)


def batch_of(rows, start=0):
    ids = np.arange(start, start + rows)
    return {"id": ids, "x": np.stack([ids, -ids], axis=1)}


@given(ROWS, REPLICAS)
def test_usable_replicas_divide_the_rows_and_no_larger_number_does(rows, replicas):
    usable = usable_replicas(rows, replicas)
    assert 1 <= usable <= replicas
    assert rows % usable == 0
    assert all(rows % k for k in range(usable + 1, replicas + 1))


@given(ROWS, REPLICAS)
def test_exact_keeps_every_row_in_order(rows, replicas):
    used, parts, *_ = split_batch(batch_of(rows), replicas, "exact")
    assert used == usable_replicas(rows, replicas)
    assert parts["id"].shape == (used, rows // used)
    assert parts["x"].shape == (used, rows // used, 2)
    assert parts["id"].ravel().tolist() == list(range(rows))
    assert parts["x"].reshape(-1, 2).tolist() == batch_of(rows)["x"].tolist()


@given(ROWS, REPLICAS)
def test_drop_loses_the_last_rows_only(rows, replicas):
    split = split_batch(batch_of(rows), replicas, "drop")
    if rows < replicas:
        assert split is None
    else:
        assert split.replicas == replicas
        assert split.parts["id"].ravel().tolist() == list(range(rows - rows % replicas))


@given(ROWS, REPLICAS, st.data())
def test_some_parts_are_those_of_all(rows, replicas, data):
    used, parts, *_ = split_batch(batch_of(rows), replicas, "exact")
    first = data.draw(st.integers(0, used))
    end = data.draw(st.integers(first, used))
    some = part_of(batch_of(rows), first, end - first, rows // used)
    assert some["id"].tolist() == parts["id"][first:end].tolist()
    assert some["x"].tolist() == parts["x"][first:end].tolist()


def test_splitting_copies_nothing():
    batch = np.zeros((8, 3))[::2]
    assert np.shares_memory(split_batch(batch, 4, "exact").parts, batch)


@given(st.lists(ROWS, min_size=1, max_size=20), REPLICAS)
def test_groups_lose_nothing_when_exact(sizes, replicas):
    starts = np.cumsum([0, *sizes])
    batches = [batch_of(size, start) for size, start in zip(sizes, starts, strict=False)]
    seen = []
    for group in group_batches(batches, replicas):
        used, parts, *_ = split_group(group, replicas, "exact")
        if len(group) == replicas and len({len(batch["id"]) for batch in group}) == 1:
            assert used == replicas
        seen += parts["id"].ravel().tolist()
    assert seen == list(range(sum(sizes)))


def test_batch_i_of_a_full_group_goes_to_replica_i():
    split = split_group([batch_of(2, 0), batch_of(2, 10)], 2, "exact")
    assert split.parts["id"].tolist() == [[0, 1], [10, 11]]


@pytest.mark.parametrize("sizes", [[2], [2, 2, 1], [1, 2, 3]])
def test_drop_loses_groups_that_are_not_full_and_even(sizes):
    assert split_group([batch_of(size) for size in sizes], 3, "drop") is None


@pytest.mark.parametrize("remainder", ["exact", "drop"])
def test_rows_of_one_step_have_one_shape(remainder):
    with pytest.raises(BatchError, match=r"(?s)\(5,\).*\(7,\).*pad"):
        split_group([np.zeros((2, 5)), np.zeros((2, 7))], 2, remainder)


def test_a_source_may_reuse_its_buffer_within_a_group():
    buffer = np.zeros(1)

    def source():
        for value in range(4):
            buffer[:] = value
            yield buffer

    groups = [split_group(group, 2, "exact").parts.tolist() for group in group_batches(source(), 2)]
    assert groups == [[[0], [1]], [[2], [3]]]
