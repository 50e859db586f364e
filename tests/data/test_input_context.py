from __future__ import annotations

import dataclasses

import pytest

from replicax.data import InputContext, ValueContext
from replicax.errors import ArgumentError


@pytest.mark.parametrize(("rows", "replicas", "expected"), [(128, 8, 16), (8, 8, 1), (7, 1, 7)])
def test_per_replica_batch_size(rows, replicas, expected):
    assert InputContext(num_replicas_in_sync=replicas).get_per_replica_batch_size(rows) == expected


@pytest.mark.parametrize(("rows", "replicas", "fits"), [(10, 4, "8 or 12"), (3, 8, ": 8."), (17, 8, "16 or 24")])
def test_a_batch_that_does_not_divide_is_told_what_fits(rows, replicas, fits):
    with pytest.raises(ArgumentError, match=f"{rows} rows.*{replicas} replicas.*{fits}"):
        InputContext(num_replicas_in_sync=replicas).get_per_replica_batch_size(rows)


@pytest.mark.parametrize("size", [0, -8, 8.0, True, "8"])
def test_a_batch_size_is_a_positive_int(size):
    with pytest.raises(ArgumentError, match=repr(size)):
        InputContext().get_per_replica_batch_size(size)


@pytest.mark.parametrize("made", [InputContext(), ValueContext()])
def test_contexts_are_frozen(made):
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.num_replicas_in_sync = 2


def test_defaults_follow_tf_distribute():
    assert InputContext() == InputContext(num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=1)
    assert ValueContext() == ValueContext(replica_id_in_sync_group=0, num_replicas_in_sync=1)
