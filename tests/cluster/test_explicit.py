"""Resolvers that the program fills itself: Simple and Union (rule 115)."""

from __future__ import annotations

import pytest

from replicax.cluster import (
    ClusterResolver,
    ClusterSpec,
    SimpleClusterResolver,
    TFConfigClusterResolver,
    TorchrunClusterResolver,
    UnionResolver,
)
from replicax.errors import ArgumentError, ClusterError


def simple(cluster, **arguments) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **arguments)


def test_simple_gives_back_what_it_was_given():
    found = simple(
        {"worker": ["a:1", "b:1"]},
        master="here",
        task_type="worker",
        task_id=1,
        environment="google",
        num_accelerators={"GPU": 2},
        rpc_layer="grpc",
    )
    assert found.cluster_spec() == ClusterSpec({"worker": ["a:1", "b:1"]})
    assert (found.task_type, found.task_id, found.environment, found.rpc_layer) == ("worker", 1, "google", "grpc")
    assert found.num_accelerators() == {"GPU": 2}
    assert (found.master(), found.master("worker", 0)) == ("grpc://here", "grpc://a:1")
    assert found.config().process_id == 1


def test_simple_without_anything_else():
    found = SimpleClusterResolver({"worker": ["a:1"]})
    assert (found.master(), found.task_type, found.task_id, found.environment) == ("", None, None, "")
    assert found.num_accelerators() == {}
    found.task_type, found.task_id = "worker", 0
    assert found.config().is_chief


@pytest.mark.parametrize(("spec", "master"), [(["a:1"], ""), (None, ""), ({}, None), ({}, 5)])
def test_simple_refuses_other_types(spec, master):
    with pytest.raises(TypeError):
        SimpleClusterResolver(spec, master)


def test_union_appends_lists_and_takes_the_first_for_the_rest():
    first = simple({"worker": ["a:1"]}, task_type="worker", task_id=0, environment="x", num_accelerators={"GPU": 1})
    second = simple({"worker": ["b:1"], "chief": ["c:1"]}, task_type="chief", task_id=0, rpc_layer="grpc")
    found = UnionResolver(first, second)
    assert found.cluster_spec() == ClusterSpec({"worker": ["a:1", "b:1"], "chief": ["c:1"]})
    assert (found.task_type, found.task_id, found.environment, found.rpc_layer) == ("worker", 0, "x", None)
    assert found.num_accelerators() == {"GPU": 1}
    assert found.master("worker", 1, "grpc") == "grpc://b:1"
    assert (found.config().process_id, found.config().coordinator_address) == (1, "c:1")


def test_union_joins_numbered_tasks():
    found = UnionResolver(simple({"worker": {1: "b:1"}}), simple({"worker": ["a:1"]}))
    assert found.cluster_spec() == ClusterSpec({"worker": ["a:1", "b:1"]})
    with pytest.raises(ClusterError, match=r"worker\[0\] comes from two"):
        UnionResolver(simple({"worker": {0: "a:1", 2: "c:1"}}), simple({"worker": ["b:1"]})).cluster_spec()


@pytest.mark.parametrize(("given", "task_id"), [(None, 1), (0, 1), (2, 2)])
def test_a_task_id_of_0_counts_as_not_given_to_a_union(given, task_id):
    assert UnionResolver(simple({"worker": ["a:1"]}, task_id=1), task_id=given).task_id == task_id


def test_a_union_may_be_told_who_it_is():
    found = UnionResolver(simple({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1, rpc_layer="http")
    assert (found.master(), found.config().process_id) == ("http://b:1", 1)


def test_a_union_asks_its_first_resolver_where_no_task_is_named():
    found = UnionResolver(simple({"worker": ["a:1"]}, master="m:1", rpc_layer="grpc"), simple({"ps": ["b:1"]}))
    assert (found.master(), found.master("ps", 0), found.master(rpc_layer="http")) == (
        "grpc://m:1",
        "grpc://b:1",
        "http://m:1",
    )


@pytest.mark.parametrize(
    "resolver",
    [
        simple({"worker": ["a:1"]}),
        UnionResolver(simple({"worker": ["a:1"]})),
        TFConfigClusterResolver(environ={"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}),
    ],
    ids=lambda resolver: type(resolver).__name__,
)
def test_task_and_rpc_layer_may_be_assigned(resolver):
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "http"
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "http")
    assert resolver.master("worker", 0) == "http://a:1"
    for name in ("task_type", "rpc_layer"):
        with pytest.raises(ArgumentError, match=name):
            setattr(resolver, name, 5)


def test_a_union_of_one_that_does_not_list_all():
    alone = TorchrunClusterResolver("h:1", environ={"RANK": "2", "WORLD_SIZE": "3"})
    assert UnionResolver(alone).config().process_id == 2
    with pytest.raises(ClusterError, match="does not list all"):
        UnionResolver(simple({"worker": ["a:1"]}), alone).config()


def test_a_union_refuses_the_same_address_twice():
    with pytest.raises(ClusterError, match="a:1"):
        UnionResolver(simple({"worker": ["a:1"]}), simple({"ps": ["a:1"]})).cluster_spec()


@pytest.mark.parametrize("resolvers", [(), (5,), (simple({}), None), (TFConfigClusterResolver,)])
def test_a_union_takes_resolvers(resolvers):
    with pytest.raises(ArgumentError):
        UnionResolver(*resolvers)


class OfTheUser(ClusterResolver):
    """Written for TensorFlow: no name, and a constructor that does not know of ours."""

    def __init__(self, addresses):
        self._addresses = addresses

    def cluster_spec(self):
        return ClusterSpec({"worker": self._addresses})

    def master(self, task_type=None, task_id=None, rpc_layer=None):
        return self._addresses[0]

    def num_accelerators(self, task_type=None, task_id=None, config_proto=None):
        return {"GPU": 8}


def test_a_users_resolver_needs_no_more_than_tensorflows():
    resolver = OfTheUser(["a:1", "b:1"])
    resolver.task_type, resolver.task_id = "worker", 1
    config = resolver.config()
    assert (config.process_id, config.num_processes, config.source) == (1, 2, "OfTheUser")
    assert (resolver.environment, resolver.rpc_layer, resolver.num_accelerators()) == (None, None, {"GPU": 8})
    assert UnionResolver(resolver).cluster_spec() == resolver.cluster_spec()
    assert OfTheUser(["a:1"]).task_id is None
