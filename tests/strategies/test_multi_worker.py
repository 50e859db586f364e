"""The strategy of many workers, as far as one process shows it. (tests/multiprocess has the rest.)"""

import jax
import jax.numpy as jnp
import pytest

import replicax as rx
from replicax.errors import ArgumentError
from replicax.strategies import workers


@pytest.fixture
def started(monkeypatch):
    """The stall timeouts with which watching would have begun."""
    found = []
    monkeypatch.setattr(workers, "start", lambda cluster, start, stall: found.append(stall) or [])
    return found


@pytest.mark.parametrize(
    ("options", "stall", "watched"),
    [
        ({}, {}, 300.0),
        ({"timeout_seconds": 20}, {}, 20.0),
        ({}, {"stall_timeout": 30}, 30.0),
        ({"timeout_seconds": 30}, {"stall_timeout": 30}, 30.0),
        ({"bytes_per_pack": 8}, {"stall_timeout": None}, None),
    ],
)
def test_the_options_timeout_is_the_stall_timeout(started, options, stall, watched):
    rx.MultiWorkerMirroredStrategy(communication_options=rx.CommunicationOptions(**options), **stall)
    assert started == [watched]


def test_two_different_timeouts_are_refused(started):
    with pytest.raises(ArgumentError, match="one setting"):
        rx.MultiWorkerMirroredStrategy(None, rx.CommunicationOptions(timeout_seconds=20), stall_timeout=30)
    with pytest.raises(ArgumentError, match="CommunicationOptions"):
        rx.MultiWorkerMirroredStrategy(None, {"timeout_seconds": 20})
    assert started == []


@pytest.mark.parametrize("make", [rx.MirroredStrategy, rx.CentralStorageStrategy])
def test_who_waits_for_nobody_has_no_timeout(make):
    with pytest.raises(ArgumentError, match="waits for no other"):
        make(communication_options=rx.CommunicationOptions(timeout_seconds=20))


def test_a_single_call_has_no_timeout(mirrored):
    def step():
        context = rx.get_replica_context()
        number = jnp.float32(context.replica_id_in_sync_group)
        return context.all_reduce("sum", number, options=rx.CommunicationOptions(timeout_seconds=20))

    with pytest.raises(ArgumentError, match="single call"):
        jax.block_until_ready(mirrored(2).run(step))


def test_the_resolver_that_was_found_can_be_asked(started, monkeypatch):
    cluster = '{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    resolver = rx.MultiWorkerMirroredStrategy().cluster_resolver
    assert isinstance(resolver, rx.cluster_resolver.TFConfigClusterResolver)
    assert (resolver.task_type, resolver.task_id, resolver.cluster_spec().num_tasks("worker")) == ("worker", 0, 1)
    given = rx.cluster_resolver.SimpleClusterResolver({"worker": ["a:1"]}, task_type="worker", task_id=0)
    assert rx.MultiWorkerMirroredStrategy(given).cluster_resolver is given


def test_without_a_cluster_the_resolver_names_no_task(started):
    resolver = rx.MultiWorkerMirroredStrategy().cluster_resolver
    assert (resolver.task_type, resolver.task_id, bool(resolver.cluster_spec())) == (None, None, False)
