from __future__ import annotations

import socket

import pytest

from replicax.cluster import ClusterSpec, Task, own_address
from replicax.errors import ClusterError
from replicax.ray_cluster import nodes
from replicax.ray_cluster.nodes import answers, head_ip, node_ip, task_arguments, visitor_arguments

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


def test_servers_without_parameter_servers_have_room_for_a_worker_of_any_job():
    spec = ClusterSpec({"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]})
    assert '{"replicax_worker_1": 1, "replicax_room": 1}' in task_arguments(spec, Task("worker", 1), dashboard=False)


def test_nothing_can_be_placed_on_the_node_of_a_coordinator():
    arguments = visitor_arguments(SPEC)
    assert arguments[:6] == ["--address", "10.0.0.1:2222", "--num-cpus", "0", "--num-gpus", "0"]
    assert "--resources" not in arguments


@pytest.fixture
def alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretends that this is the machine alpha, whose own name stands for a loopback address here, as on Debian."""
    names = {"alpha": "127.0.1.1", "beta": "10.0.0.2"}
    for module in (nodes, own_address):
        monkeypatch.setattr(module, "resolve", lambda host: [names.get(host, host)])
        monkeypatch.setattr(module, "is_mine", lambda ip: ip in ("10.0.0.1", "127.0.1.1"))
    monkeypatch.setattr(own_address, "source_towards", lambda ip: "127.0.0.1" if ip.startswith("127.") else "10.0.0.1")


@pytest.mark.parametrize("alpha_is", ["alpha", "10.0.0.1"])
@pytest.mark.usefixtures("alpha")
def test_a_node_listens_where_the_cluster_says_and_others_can_connect(alpha_is: str):
    spec = ClusterSpec({"ps": [f"{alpha_is}:1"], "worker": [f"{alpha_is}:2", "beta:1"]})
    assert node_ip(spec, Task("ps", 0), 0.0) == node_ip(spec, Task("worker", 0), 0.0) == head_ip(spec) == "10.0.0.1"
    assert task_arguments(spec, Task("worker", 0), dashboard=False)[1] == "10.0.0.1:1"
    with pytest.raises(ClusterError, match=r"The address of worker:1 cannot be used: 'beta' means 10\.0\.0\.2"):
        node_ip(spec, Task("worker", 1), 0.0)


@pytest.mark.usefixtures("alpha")
def test_a_coordinator_that_the_cluster_does_not_name():
    spec = ClusterSpec({"ps": ["beta:1"], "worker": ["10.0.0.3:1"]})
    assert node_ip(spec, Task("chief", 0), 0.0) == "10.0.0.1"
    assert head_ip(spec) == "10.0.0.2"


def test_a_cluster_on_this_machine():
    spec = ClusterSpec({"ps": ["localhost:1"], "worker": ["127.0.0.1:2"]})
    assert node_ip(spec, Task("worker", 0), 0.0) == head_ip(spec) == "127.0.0.1"


def test_who_listens_is_seen():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert answers(address)
    assert not answers(address)
