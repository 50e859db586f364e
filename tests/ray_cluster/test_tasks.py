from __future__ import annotations

import pytest

from replicax.cluster import ClusterConfig, ClusterSpec, SimpleClusterResolver, Task
from replicax.errors import ClusterError
from replicax.ray_cluster import tasks

SPEC = ClusterSpec({"worker": ["a:1", "b:1"], "ps": ["c:1"], "chief": ["d:1"]})


def test_a_good_cluster():
    tasks.check_cluster(SPEC)
    tasks.check_cluster(ClusterSpec({"worker": ["a:1"], "ps": ["c:1"]}))
    assert list(map(str, tasks.serving_tasks(SPEC))) == ["ps:0", "worker:0", "worker:1"]
    assert tasks.head_address(SPEC) == "c:1"


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({}, "cluster is empty"),
        ({"worker": ["a:1"]}, "cluster has no parameter server"),
        ({"ps": ["a:1"]}, "cluster has no worker"),
        ({"ps": ["a:1"], "worker": ["b:1"], "helper": ["c:1"]}, "cluster.helper must be one of"),
        ({"ps": ["a:1"], "worker": ["b:1"], "chief": ["c:1", "d:1"]}, "cluster.chief must have one task only"),
        ({"ps": ["a:1"], "worker": {"1": "b:1"}}, "cluster.worker must number its tasks from 0 without gaps"),
    ],
)
def test_what_is_no_cluster(cluster, says):
    with pytest.raises(ClusterError, match=says):
        tasks.check_cluster(ClusterSpec(cluster))


@pytest.mark.parametrize(
    ("cluster", "serving"),
    [
        ({"worker": ["a:1", "b:1"]}, ["worker:0", "worker:1"]),
        ({"worker": ["a:1"], "chief": ["b:1"], "evaluator": ["c:1"]}, ["chief:0", "worker:0"]),
        ({"chief": ["b:1"]}, ["chief:0"]),
    ],
)
def test_a_cluster_of_workers_alone(cluster, serving):
    spec = ClusterSpec(cluster)
    tasks.check_served(spec)
    assert list(map(str, tasks.serving_tasks(spec))) == serving
    assert str(tasks.head_task(spec)) == serving[0]
    assert tasks.check_server(spec, *tasks.head_task(spec).__dict__.values()) == tasks.head_task(spec)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ({}, "cluster is empty"),
        ({"evaluator": ["a:1"]}, "cluster has no worker"),
        ({"ps": ["a:1"], "worker": ["b:1"]}, r"cluster\.ps is not allowed in synchronous training"),
        ({"worker": {"1": "b:1"}}, r"cluster\.worker must number its tasks from 0 without gaps"),
    ],
)
def test_what_no_workers_are(cluster, says):
    with pytest.raises(ClusterError, match=says):
        tasks.check_workers(ClusterSpec(cluster))


def test_an_evaluator_is_not_served():
    with pytest.raises(ClusterError, match=r"job must be one of \['worker'\].*Run the script there"):
        tasks.check_server(ClusterSpec({"worker": ["a:1"], "evaluator": ["c:1"]}), "evaluator", 0)


@pytest.mark.parametrize(("job", "index"), [("chief", 0), (None, None)])
def test_the_coordinator_is_the_chief_or_nobody(job, index):
    tasks.check_coordinator(job, index)


@pytest.mark.parametrize(
    ("job", "index", "says"),
    [
        ("worker", 0, "task.type cannot coordinate"),
        ("ps", 0, "task.type cannot coordinate.*rx.Server"),
        ("evaluator", 0, "task.type has no part in this training"),
        ("chief", 1, "task.index must be 0, got 1"),
    ],
)
def test_who_cannot_coordinate(job, index, says):
    with pytest.raises(ClusterError, match=says):
        tasks.check_coordinator(job, index)


@pytest.mark.parametrize(("job", "index"), [("chief", 0), ("ps", 1), ("worker", 2), ("other", 0), ("worker", True)])
def test_what_cannot_be_served(job, index):
    with pytest.raises(ClusterError):
        tasks.check_server(SPEC, job, index)


def test_who_is_missing_is_told_with_its_address():
    there = {"replicax_ps_0", "replicax_worker_1", "CPU"}
    assert [tasks.describe(SPEC, task) for task in tasks.missing_tasks(SPEC, there)] == ["worker:0 at a:1"]


def test_the_task_of_a_resolver_and_of_a_config():
    assert tasks.own_task(SimpleClusterResolver(SPEC, task_type="ps", task_id=0)) == (SPEC, "ps", 0)
    assert tasks.own_task(ClusterConfig(SPEC, Task("chief", 0))) == (SPEC, "chief", 0)
    assert tasks.own_task(ClusterConfig()) == (ClusterSpec(), None, None)
