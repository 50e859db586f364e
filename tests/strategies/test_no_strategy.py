from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, ContextError, ReduceError


@pytest.fixture
def default():
    return rx.get_strategy()


def test_the_default_strategy_is_current_outside_of_every_scope_and_there_is_one(default):
    assert repr(default) == "DefaultStrategy()"
    assert rx.get_strategy() is default
    assert not rx.has_strategy()
    assert default.num_replicas_in_sync == 1


def test_run_calls_the_function_as_it_is(default):
    seen = []
    marker = object()
    assert default.run(lambda x, *, y: (seen.append(x), y)[1], args=(marker,), kwargs={"y": marker}) is marker
    assert seen == [marker]


def test_its_scope_changes_nothing(default):
    with default.scope() as current:
        assert current is default
        assert not rx.has_strategy()
        assert rx.Variable(1.0).strategy is None
        assert rx.get_replica_context() is not None


def test_a_real_scope_may_be_opened_in_its_scope_but_not_the_other_way_round(default, two):
    with default.scope(), two.scope():
        assert rx.get_strategy() is two
    with two.scope(), pytest.raises(ContextError, match="cpu:0"), default.scope():
        pass


def test_datasets_and_values_pass_through(default):
    dataset = [np.ones(2)]
    assert default.distribute_dataset(dataset) is dataset
    assert default.distribute_datasets_from_function(lambda context: (context.num_replicas_in_sync, dataset)) == (
        1,
        dataset,
    )
    assert default.distribute_values_from_function(lambda replica: replica.num_replicas_in_sync) == 1
    with pytest.raises(ArgumentError, match="batches"):
        default.distribute_dataset(np.ones(4), batch_size=2)


def test_its_replica_context_has_nobody_to_talk_to(default):
    replica = rx.get_replica_context()
    value = {"x": 1.0}
    assert (replica.replica_id_in_sync_group, replica.num_replicas_in_sync) == (0, 1)
    assert replica.strategy is default
    assert replica.devices == default.devices
    assert replica.all_reduce("sum", value) == value
    assert replica.all_gather(value, axis=0) is value
    with pytest.raises(ReduceError):
        replica.all_reduce("max", value)


def test_merge_call_calls_the_function_in_cross_replica_context(default):
    def merge_fn(strategy, x, *, y):
        return strategy, x, y, rx.in_cross_replica_context(), rx.get_replica_context()

    result = rx.get_replica_context().merge_call(merge_fn, args=(1,), kwargs={"y": 2})
    assert result == (default, 1, 2, True, None)
    assert not rx.in_cross_replica_context()
