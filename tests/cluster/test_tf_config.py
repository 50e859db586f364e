"""Rules 105 to 107: what a TFConfigClusterResolver answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from replicax.cluster import ClusterSpec, TFConfigClusterResolver
from replicax.errors import ArgumentError, ClusterError

WORKERS = {"worker": ["w0:1", "w1:1"]}


def resolver(document: Any = None, **arguments: Any) -> TFConfigClusterResolver:
    environ = {} if document is None else {"TF_CONFIG": json.dumps(document)}
    return TFConfigClusterResolver(**arguments, environ=environ)


def test_it_reads_what_is_there():
    found = resolver({"cluster": WORKERS, "task": {"type": "worker", "index": "1"}, "rpc_layer": "grpc"})
    assert found.cluster_spec() == ClusterSpec(WORKERS)
    assert (found.task_type, found.task_id, found.rpc_layer) == ("worker", 1, "grpc")
    assert found.environment is None
    assert found.num_accelerators() == {}


@pytest.mark.parametrize("document", [None, {}, {"cluster": {}}, {"cluster": {}, "task": {}}, {"environment": "cloud"}])
def test_without_a_cluster_it_is_a_single_process(document):
    found = resolver(document)
    assert found.cluster_spec() == ClusterSpec({})
    assert (found.task_type, found.task_id, found.rpc_layer, found.master()) == (None, None, None, "")
    assert found.config().is_chief
    assert found.config().num_processes == 1


def test_an_empty_variable_is_none():
    assert TFConfigClusterResolver(environ={"TF_CONFIG": "  "}).config().task is None


def test_it_is_read_anew_on_every_access():
    environ: dict[str, str] = {}
    found = TFConfigClusterResolver(environ=environ)
    assert found.task_id is None
    environ["TF_CONFIG"] = json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 1}})
    assert found.task_id == 1
    assert found.config().process_id == 1


def test_by_default_it_reads_the_process_environment(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": WORKERS, "task": {"type": "worker", "index": 1}}))
    assert TFConfigClusterResolver().task_id == 1


def test_arguments_win_over_the_variable():
    document = {"cluster": WORKERS, "task": {"type": "chief", "index": 7}, "rpc_layer": "grpc", "environment": "x"}
    found = resolver(document, task_type="worker", task_id=0, rpc_layer="http", environment="mine")
    assert (found.task_type, found.task_id, found.rpc_layer, found.environment) == ("worker", 0, "http", "mine")
    assert found.config().is_chief
    found.task_type, found.task_id = "evaluator", 0
    assert str(found.config().task) == "evaluator:0"


@pytest.mark.parametrize(
    ("document", "asked", "master"),
    [
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1}}, (), "w1:1"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1}}, ("worker", 0), "w0:1"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1}}, ("worker", 0, "grpc"), "grpc://w0:1"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"}, (), "grpc://w1:1"),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1}, "session_master": "sm"}, (), "sm"),
        ({"cluster": {"worker": ["w0:1"]}, "task": {"type": "worker", "index": 0}, "rpc_layer": "grpc"}, (), ""),
        ({"cluster": WORKERS, "task": {"type": "evaluator", "index": 0}}, (), ""),
        ({"session_master": "sm"}, (), "sm"),
        ({"cluster": WORKERS}, (), ""),
    ],
)
def test_master(document, asked, master):
    assert resolver(document).master(*asked) == master


def test_master_of_a_task_that_is_not_there():
    with pytest.raises(ClusterError, match="2"):
        resolver({"cluster": WORKERS}).master("worker", 2)
    with pytest.raises(ClusterError, match="session_master"):
        resolver({"session_master": 5}).master()


@pytest.mark.parametrize(
    ("document", "field", "words"),
    [
        ([], "TF_CONFIG", ["[]", "JSON object"]),
        ({"cluster": WORKERS}, "TF_CONFIG task", ["missing", '"index": 0']),
        ({"task": {"type": "worker", "index": 1}}, "TF_CONFIG cluster", ["missing", "alone"]),
        ({"cluster": None}, "TF_CONFIG cluster", ["null", "object"]),
        ({"cluster": WORKERS, "task": {"index": 0}}, "TF_CONFIG task.type", ["missing"]),
        ({"cluster": WORKERS, "task": {"type": "worker"}}, "TF_CONFIG task.index", ["missing"]),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 2}}, "TF_CONFIG task.index", ["2", "less than 2"]),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": -1}}, "TF_CONFIG task.index", ["-1"]),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": 1.5}}, "TF_CONFIG task.index", ["1.5"]),
        ({"cluster": WORKERS, "task": {"type": "worker", "index": True}}, "TF_CONFIG task.index", ["True"]),
        ({"cluster": WORKERS, "task": {"type": "master", "index": 0}}, "TF_CONFIG task.type", ["'master'", "'chief'"]),
        ({"cluster": WORKERS, "task": {"type": "chief", "index": 0}}, "TF_CONFIG task.type", ["'chief'", "worker"]),
        ({"cluster": {"worker": ["a"]}}, "TF_CONFIG cluster.worker[0]", ["'a'", "no port"]),
        ({"cluster": {"slave": ["a:1"]}}, "TF_CONFIG cluster.slave", ["'slave'", "worker"]),
        ({"clusters": WORKERS, "task": {}}, "TF_CONFIG clusters", ["'cluster'"]),
        ({"cluster": {"worker": ["host1:port"]}}, "TF_CONFIG cluster.worker[0]", ["'port'", "65535"]),
    ],
)
def test_what_is_wrong_is_named_with_its_value_and_a_cure(document, field, words):
    with pytest.raises(ClusterError) as error:
        resolver(document).config()
    assert error.value.field == field
    for word in words:
        assert word in str(error.value)


def test_json_that_is_none_is_told_with_its_place():
    with pytest.raises(ClusterError, match=r"^TF_CONFIG is not JSON: .* at line 2, column \d+, got '.*json\.dumps"):
        TFConfigClusterResolver(environ={"TF_CONFIG": '{"cluster": {},\n}'}).config()


def test_a_long_value_is_cut_short_in_the_message():
    with pytest.raises(ClusterError) as error:
        TFConfigClusterResolver(environ={"TF_CONFIG": "x" * 5000}).config()
    assert len(str(error.value)) < 500
    assert error.value.value == "x" * 5000


def test_keys_of_platforms_are_let_through():
    assert resolver({"cluster": WORKERS, "task": {"type": "worker", "index": 0}, "job": {}, "trial": "1"}).config()


@pytest.mark.parametrize("arguments", [{"task_type": 5}, {"rpc_layer": 5}, {"environment": 5}])
def test_arguments_of_a_wrong_type(arguments):
    with pytest.raises(ArgumentError, match="5"):
        resolver({}, **arguments)


@pytest.mark.parametrize("task_id", ["0", True, -1, 0.0])
def test_a_task_id_that_is_no_number(task_id):
    with pytest.raises(ClusterError, match="task_id"):
        resolver({}, task_id=task_id)


def test_half_a_task_is_none():
    with pytest.raises(ClusterError, match=r"task\.index is missing"):
        resolver({"cluster": WORKERS}, task_type="worker").config()
