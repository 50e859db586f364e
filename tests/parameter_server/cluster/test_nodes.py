from __future__ import annotations

import socket

import pytest

from replicax.cluster import ClusterSpec, Task
from replicax.parameter_server.cluster import nodes
from replicax.parameter_server.cluster.nodes import answers, own_ip, task_arguments, to_ip, visitor_arguments

SPEC = ClusterSpec({"ps": ["10.0.0.1:2222"], "worker": ["10.0.0.2:2223", "10.0.0.3:2222"]})


def test_the_first_parameter_server_hosts_the_head_at_its_own_port():
    arguments = task_arguments(SPEC, Task("ps", 0), dashboard=False)
    assert arguments[:6] == ["--head", "--port", "2222", "--include-dashboard", "false", "--resources"]
    assert arguments[6] == '{"replicax_ps_0": 1}'


def test_the_others_join_it_and_listen_at_theirs():
    arguments = task_arguments(SPEC, Task("worker", 0), dashboard=True)
    assert arguments[:4] == ["--address", "10.0.0.1:2222", "--node-manager-port", "2223"]
    assert arguments[5] == '{"replicax_worker_0": 1}'
    assert "--include-dashboard" not in arguments


def test_nothing_can_be_placed_on_the_node_of_a_coordinator():
    arguments = visitor_arguments(SPEC)
    assert arguments[:6] == ["--address", "10.0.0.1:2222", "--num-cpus", "0", "--num-gpus", "0"]
    assert "--resources" not in arguments


def test_a_node_listens_on_the_host_of_its_address_if_others_can_use_it(monkeypatch: pytest.MonkeyPatch):
    assert own_ip("127.0.0.1") == "127.0.0.1"
    assert own_ip("192.0.2.200") == ""  # Not of this machine.
    monkeypatch.setattr(nodes, "to_ip", lambda host: "127.0.1.1")
    assert own_ip("this-machine") == ""  # Its name here; elsewhere the name means something else.
    monkeypatch.setattr(nodes, "to_ip", lambda host: None)
    assert own_ip("unknown") == ""


def test_who_listens_is_seen():
    assert to_ip("localhost") in ("127.0.0.1", "::1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
