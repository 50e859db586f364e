from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from replicax.cluster import Address, ClusterSpec, Task, parse_address
from replicax.errors import ClusterError

SPEC = ClusterSpec({"worker": ["a:1", "b:2"], "chief": ["c:3"], "ps": {"3": "d:4", 1: "e:5"}})


def test_a_spec_answers_who_is_where():
    assert SPEC.jobs == ["chief", "ps", "worker"]
    assert (SPEC.num_tasks("worker"), SPEC.num_tasks("ps")) == (2, 2)
    assert SPEC.task_indices("ps") == [1, 3]
    assert (SPEC.task_address("worker", 1), SPEC.task_address("ps", 3)) == ("b:2", "d:4")
    assert SPEC.job_tasks("ps") == [None, "e:5", None, "d:4"]
    assert SPEC.has_task("ps", 3)
    assert not SPEC.has_task("ps", 0)
    assert not SPEC.has_task("evaluator", 0)


def test_a_spec_comes_back_as_the_dict_that_makes_it():
    assert SPEC.as_dict() == {"worker": ["a:1", "b:2"], "chief": ["c:3"], "ps": {1: "e:5", 3: "d:4"}}
    assert ClusterSpec(SPEC.as_dict()) == ClusterSpec(SPEC) == SPEC


def test_lists_and_complete_dicts_are_the_same_spec():
    assert ClusterSpec({"worker": {"1": "b:2", "0": "a:1"}}) == ClusterSpec({"worker": ["a:1", "b:2"]})


def test_specs_are_values():
    again = ClusterSpec({"ps": {1: "e:5", 3: "d:4"}, "chief": ["c:3"], "worker": ["a:1", "b:2"]})
    assert (again, hash(again)) == (SPEC, hash(SPEC))
    assert again != ClusterSpec({"worker": ["a:1", "b:2"]})
    assert SPEC.as_dict() != SPEC
    assert pickle.loads(pickle.dumps(SPEC)) == copy.deepcopy(SPEC) == SPEC
    assert eval(repr(SPEC)) == SPEC
    with pytest.raises(dataclasses.FrozenInstanceError):
        SPEC.jobs = []  # type: ignore[misc]


@pytest.mark.parametrize("empty", [None, {}, ClusterSpec()])
def test_no_cluster_is_an_empty_spec(empty):
    assert not ClusterSpec(empty)
    assert ClusterSpec(empty).as_dict() == {}


@pytest.mark.parametrize(
    ("cluster", "field", "shown"),
    [
        ([], "cluster", "[]"),
        ("worker", "cluster", "'worker'"),
        ({1: ["a:1"]}, "cluster", "1"),
        ({"": ["a:1"]}, "cluster", "''"),
        ({"my job": ["a:1"]}, "cluster", "'my job'"),
        ({"worker": []}, "cluster.worker", "[]"),
        ({"worker": {}}, "cluster.worker", "{}"),
        ({"worker": None}, "cluster.worker", "null"),
        ({"worker": "a:1"}, "cluster.worker", "'a:1'"),
        ({"worker": 3}, "cluster.worker", "3"),
        ({"worker": {"x": "a:1"}}, "cluster.worker index", "'x'"),
        ({"worker": {-1: "a:1"}}, "cluster.worker index", "-1"),
        ({"worker": {True: "a:1"}}, "cluster.worker index", "True"),
        ({"worker": {"01": "a:1"}}, "cluster.worker index", "'01'"),
        ({"worker": {1: "a:1", "1": "b:1"}}, "cluster.worker", "1"),
        ({"worker": ["a:1", None]}, "cluster.worker[1]", "null"),
        ({"worker": ["a:1", 5]}, "cluster.worker[1]", "5"),
        ({"worker": ["a:1", "b:2", "A:1"]}, "cluster.worker[2]", "'A:1'"),
        ({"worker": ["a:1"], "ps": ["a:1"]}, "cluster.worker[0]", "'a:1'"),
        ({"worker": ["localhost:1", "127.0.0.1:1"]}, "cluster.worker[1]", "'127.0.0.1:1'"),
        ({"worker": ["localhost:1", "10.0.0.1:1"]}, "cluster.worker[0]", "'localhost:1'"),
        ({"worker": ["10.0.0.1:1"], "ps": ["[::1]:1"]}, "cluster.ps[0]", "'[::1]:1'"),
        ({"worker": ["0.0.0.0:1", "10.0.0.1:1"]}, "cluster.worker[0]", "0.0.0.0:1"),
    ],
)
def test_a_malformed_spec_names_field_and_value(cluster, field, shown):
    with pytest.raises(ClusterError) as error:
        ClusterSpec(cluster)
    assert error.value.field == field
    assert shown in str(error.value)
    assert str(error.value).endswith(".")


@pytest.mark.parametrize(
    ("ask", "value"),
    [
        (lambda: SPEC.num_tasks("evaluator"), "'evaluator'"),
        (lambda: SPEC.task_indices(None), "job"),
        (lambda: SPEC.task_address("worker", 2), "2"),
        (lambda: SPEC.task_address("worker", -1), "-1"),
        (lambda: SPEC.task_address("worker", True), "True"),
        (lambda: Task("worker", -1), "-1"),
        (lambda: Task("worker", True), "True"),
        (lambda: Task("worker", "0"), "'0'"),
        (lambda: Task("", 0), "''"),
        (lambda: Task(None, 0), "task.type"),
    ],
)
def test_asking_for_what_is_not_there(ask, value):
    with pytest.raises(ClusterError, match=value):
        ask()


def test_a_task_is_written_in_two_ways():
    assert str(Task("worker", 1)) == "worker:1"
    assert Task("worker", 1).device == "/job:worker/replica:0/task:1"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1", Address("host", 1)),
        ("Worker-0.Example.COM.:65535", Address("worker-0.example.com", 65535)),
        ("my_service:80", Address("my_service", 80)),
        ("10.0.0.1:2222", Address("10.0.0.1", 2222)),
        ("[FD00:0::1]:2222", Address("fd00::1", 2222)),
        ("localhost:5", Address("127.0.0.1", 5)),
    ],
)
def test_addresses_are_taken_apart(text, address):
    assert parse_address(text, "address") == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", "host:", ":1", "host:port", "host:0", "host:65536", "host:-1", "host:01", "host:1.5", "host:²"),
        *("ho st:1", " host:1", "host:1\n", "grpc://host:1", "host:1/path", "me@host:1", "a..b:1", "-a:1", "hôst:1"),
        *("10.0.0.256:1", "10.0.0:1", "1:2:3", "fd00::1:2222", "[fd00::1]", "[fd00::x]:1", "[]:1", b"host:1", 5, None),
    ],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ClusterError, match="address") as error:
        parse_address(text, "address")
    assert "Write 'host:port'" in str(error.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "[::1]", "0.0.0.0", "[::]", "a.localhost"])
def test_loopback_addresses_are_known(host):
    assert parse_address(f"{host}:1", "address").is_loopback()
    assert not parse_address("localhost.example:1", "address").is_loopback()
