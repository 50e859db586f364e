from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

import pytest

from replicax.cluster import ClusterConfig, ClusterSpec, Task, own_address
from replicax.cluster.own_address import is_mine, own_ip, own_ip_of, resolve
from replicax.cluster.patience import CONNECTING
from replicax.errors import ClusterError

ALPHA = "10.73.0.1"
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Pretends that this is another machine, with names, addresses and routes of its own."""

    def become(names: dict[str, list[str]], mine: str = ALPHA, routes: bool = True) -> None:
        def source(ip: str) -> str:
            return ip if ip.startswith("127.") else mine if routes else ""

        monkeypatch.setattr(socket, "gethostname", lambda: "alpha")
        monkeypatch.setattr(own_address, "resolve", lambda host: names.get(host, [host] if host[0].isdigit() else []))
        monkeypatch.setattr(own_address, "is_mine", lambda ip: ip == mine or ip.startswith("127."))
        monkeypatch.setattr(own_address, "source_towards", source)

    return become


def found(address: str, *others: str, **environ: str) -> str:
    return own_ip("worker:0", address, others, 0.0, environ)


def test_the_address_that_the_cluster_gives(machine: Machine):
    machine({"alpha": ["10.73.0.1"], "beta": ["10.73.0.2"]})
    assert found("alpha:1", "beta:1") == found("10.73.0.1:1", "10.73.0.2:1") == ALPHA


def test_of_several_addresses_of_a_name_that_which_others_can_use(machine: Machine):
    machine({"alpha": ["127.0.1.1", "10.99.0.1", "10.73.0.1"]})
    assert found("alpha:1", "10.73.0.2:1") == ALPHA


def test_a_name_that_leads_back_while_others_are_elsewhere(machine: Machine):
    machine({"alpha": ["127.0.1.1"], "beta": ["10.73.0.2"]})
    assert found("alpha:1", "alpha:2", "beta:1") == ALPHA
    assert found("alpha:1", "beta:1", "unknown:1") == ALPHA


def test_a_cluster_on_one_machine(machine: Machine):
    machine({"alpha": ["127.0.1.1"]})
    assert found("localhost:1", "localhost:2") == "127.0.0.1"
    assert found("127.0.0.5:1", "127.0.0.1:2") == "127.0.0.5"
    assert found("0.0.0.0:1", "0.0.0.0:2") == "127.0.0.1"
    assert found("alpha:1", "alpha:2") == "127.0.1.1"
    assert found("", "127.0.0.1:2") == "127.0.0.1"


def test_a_task_whose_address_is_not_told(machine: Machine):
    machine({"alpha": ["127.0.1.1"], "beta": ["10.73.0.2"]})
    assert found("", "beta:1") == ALPHA


def test_where_only_the_others_can_tell(machine: Machine):
    machine({"alpha": ["127.0.1.1"]})
    assert found("alpha:1") == found("", "alpha:1") == ""


def test_the_environment_decides_where_addresses_are_translated(machine: Machine):
    machine({"service": ["10.0.0.9"], "pod": ["10.73.0.1"]})
    assert found("service:1", "10.73.0.2:1", REPLICAX_HOST=" pod ") == ALPHA
    with pytest.raises(ClusterError, match=r"REPLICAX_HOST cannot be used: 'service' means 10\.0\.0\.9"):
        found("service:1", "10.73.0.2:1", REPLICAX_HOST="service")


@pytest.mark.parametrize(
    ("address", "names", "problem", "cure"),
    [
        ("alpha:1", {}, "'alpha' is a name that is not known here", "say '10.73.0.1 alpha'"),
        (
            "alpha:1",
            {"alpha": ["10.0.0.9"]},
            "'alpha' means 10.0.0.9, which is not an address of",
            "say '10.73.0.1 alpha'",
        ),
        ("10.0.0.9:1", {}, "'10.0.0.9' means 10.0.0.9, which is not an address of", "machine gets its own task"),
    ],
)
def test_an_address_that_cannot_be_used(
    machine: Machine, address: str, names: dict[str, list[str]], problem: str, cure: str
):
    machine(names)
    with pytest.raises(ClusterError) as error:
        found(address, "10.73.0.2:1")
    assert error.value.field == "The address of worker:0"
    assert error.value.value == address
    assert problem in error.value.problem
    assert "whose name 'alpha' means" in error.value.problem
    assert cure in error.value.cure
    assert "This machine reaches the others from 10.73.0.1" in error.value.cure
    assert "set REPLICAX_HOST to 10.73.0.1" in error.value.cure


def test_no_way_to_the_others(machine: Machine):
    machine({"alpha": ["127.0.1.1"], "beta": ["10.73.0.2"]}, routes=False)
    with pytest.raises(ClusterError, match=r"'alpha' means 127\.0\.1\.1 on this.*has no route to the others"):
        found("alpha:1", "beta:1")
    with pytest.raises(ClusterError, match=r"worker:0 is not known to the cluster.*has no route to beta:1"):
        found("", "beta:1")


def test_names_that_become_known_are_waited_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    asked: list[str] = []

    def resolve(host: str) -> list[str]:
        asked.append(host)
        return [ALPHA] if len(asked) > 20 else []

    machine({})
    monkeypatch.setattr(own_address, "resolve", resolve)
    with caplog.at_level(logging.WARNING):
        assert own_ip("worker:0", "alpha:1", ["beta:1"], 30.0, {}, CONNECTING._replace(again=0.0)) == ALPHA
    assert len(caplog.messages) == 1
    assert "worker:0 waits for the name service. The address of worker:0 cannot be used" in caplog.text


def test_an_address_without_a_name_is_not_waited_for(machine: Machine):
    machine({})
    start = time.monotonic()
    with pytest.raises(ClusterError):
        own_ip("worker:0", "10.0.0.9:1", ["10.73.0.2:1"], 60.0, {})
    assert time.monotonic() - start < 30


def test_the_process_of_a_cluster(machine: Machine):
    machine({"alpha": ["10.73.0.1"], "beta": ["10.73.0.2"]})
    spec = ClusterSpec({"chief": ["beta:1"], "worker": ["alpha:1", "beta:2"]})
    assert own_ip_of(ClusterConfig(spec, Task("worker", 0)), 0.0) == ALPHA
    ranks = ClusterConfig(ClusterSpec({"worker": {0: "beta:1"}}), Task("worker", 1), processes=2)
    assert own_ip_of(ranks, 0.0) == ALPHA


def test_this_machine():
    assert is_mine("127.0.0.1")
    assert not is_mine("192.0.2.200")
    assert "127.0.0.1" in resolve("localhost")
    assert resolve("no such name") == resolve("x" * 300) == []
    assert own_address.source_towards("127.0.0.1") == "127.0.0.1"
