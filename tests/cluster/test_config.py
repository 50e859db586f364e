from __future__ import annotations

import pickle

import pytest

from replicax.cluster import ClusterConfig, ClusterSpec, Task, check_roles, check_synchronous
from replicax.errors import ClusterError

CHIEF = ClusterSpec({"chief": ["c:1"], "worker": ["w0:1", "w1:1"]})
WORKERS = ClusterSpec({"worker": ["w0:1", "w1:1", "w2:1"]})
SERVERS = ClusterSpec({"chief": ["c:1"], "worker": ["w0:1"], "ps": ["p0:1", "p1:1"], "evaluator": ["e:1"]})


@pytest.mark.parametrize(
    ("spec", "task", "is_chief", "process_id", "num_processes", "leader", "first"),
    [
        (CHIEF, ("chief", 0), True, 0, 3, "chief:0", "chief:0"),
        (CHIEF, ("worker", 0), False, 1, 3, "chief:0", "chief:0"),
        (CHIEF, ("worker", 1), False, 2, 3, "chief:0", "chief:0"),
        (CHIEF, ("evaluator", 0), True, 0, 1, None, None),
        (WORKERS, ("worker", 0), True, 0, 3, "worker:0", "worker:0"),
        (WORKERS, ("worker", 2), False, 2, 3, "worker:0", "worker:0"),
        (SERVERS, ("worker", 0), False, 1, 2, "chief:0", "ps:0"),
        (SERVERS, ("evaluator", 0), True, 0, 1, None, None),
        (ClusterSpec(), ("worker", 0), True, 0, 1, None, None),
        (ClusterSpec(), None, True, 0, 1, None, None),
    ],
)
def test_what_follows_from_a_cluster_and_a_task(spec, task, is_chief, process_id, num_processes, leader, first):
    """Rules 109 to 111."""
    config = ClusterConfig(spec, Task(*task) if task else None)
    assert (config.is_chief, config.process_id, config.num_processes) == (is_chief, process_id, num_processes)
    leaders = [str(task) if task else None for task in (config.collective_leader, config.coordination_leader)]
    assert leaders == [leader, first]
    address = {"chief:0": "c:1", "worker:0": "w0:1", None: None}[leader]
    assert config.coordinator_address == address
    assert config.knows_all_addresses


def test_a_parameter_server_has_no_number_among_those_that_train():
    config = ClusterConfig(SERVERS, Task("ps", 1))
    assert not config.is_chief
    assert str(config) == "ps:1, a parameter server"
    with pytest.raises(ClusterError, match="'ps'"):
        _ = config.process_id
    with pytest.raises(ClusterError, match="'ps'"):
        _ = config.num_processes


def test_a_number_of_processes_may_be_all_that_is_known():
    config = ClusterConfig(ClusterSpec({"worker": ["w0:1"]}), Task("worker", 5), processes=8)
    assert (config.process_id, config.num_processes, config.coordinator_address) == (5, 8, "w0:1")
    assert not config.is_chief
    assert not config.knows_all_addresses
    unknown = ClusterConfig(task=Task("worker", 0), processes=8)
    assert unknown.is_chief
    assert (unknown.coordinator_address, str(unknown.collective_leader)) == (None, "worker:0")


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("task", lambda: ClusterConfig(WORKERS)),
        ("task", lambda: ClusterConfig(processes=2)),
        ("task.type", lambda: ClusterConfig(WORKERS, Task("master", 0))),
        ("task.type", lambda: ClusterConfig(WORKERS, Task("chief", 0))),
        ("task.type", lambda: ClusterConfig(WORKERS, Task("ps", 0))),
        ("task.index", lambda: ClusterConfig(WORKERS, Task("worker", 3))),
        ("task.index", lambda: ClusterConfig(WORKERS, Task("evaluator", 1))),
        ("task", lambda: ClusterConfig(ClusterSpec(), Task("worker", 1))),
        ("task", lambda: ClusterConfig(ClusterSpec(), Task("ps", 0))),
        ("cluster.worker", lambda: ClusterConfig(ClusterSpec({"worker": {0: "a:1", 2: "b:1"}}), Task("worker", 0))),
        ("cluster", lambda: ClusterConfig(ClusterSpec({"ps": ["a:1"]}), Task("ps", 0))),
        ("cluster.master", lambda: ClusterConfig(ClusterSpec({"master": ["a:1"]}), Task("worker", 0))),
        ("cluster.chief", lambda: check_roles(ClusterSpec({"chief": ["a:1", "b:1"]}))),
        ("cluster.evaluator", lambda: check_roles(ClusterSpec({"evaluator": ["a:1", "b:1"]}))),
        ("processes", lambda: ClusterConfig(task=Task("worker", 0), processes=0)),
        ("processes", lambda: ClusterConfig(task=Task("worker", 0), processes=True)),
        ("task.index", lambda: ClusterConfig(task=Task("worker", 2), processes=2)),
        ("task.index", lambda: ClusterConfig(WORKERS, Task("worker", 0), processes=2)),
        ("task.type", lambda: ClusterConfig(task=Task("chief", 0), processes=2)),
        ("cluster.ps", lambda: check_synchronous(ClusterConfig(SERVERS, Task("worker", 0)))),
        ("cluster.ps", lambda: check_synchronous(ClusterConfig(SERVERS, Task("ps", 0)))),
        ("coordinator_address", lambda: check_synchronous(ClusterConfig(task=Task("worker", 0), processes=2))),
    ],
)
def test_what_does_not_fit_together_names_its_field(field, make):
    with pytest.raises(ClusterError) as error:
        make()
    assert error.value.field == field
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.field, again.value) == (str(error.value), field, error.value.value)


@pytest.mark.parametrize("task", [("chief", 0), ("worker", 1), ("evaluator", 0)])
def test_a_cluster_without_parameter_servers_trains_synchronously(task):
    check_synchronous(ClusterConfig(CHIEF, Task(*task)))


def test_a_config_is_a_value_that_travels():
    config = ClusterConfig(CHIEF, Task("worker", 1), source="a test")
    assert pickle.loads(pickle.dumps(config)) == config
    assert config == ClusterConfig(CHIEF, Task("worker", 1), source="another one")
    assert len({config, ClusterConfig(CHIEF, Task("worker", 1))}) == 1
