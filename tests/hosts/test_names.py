"""Workers on several hosts train, whatever the hosts' names stand for; where they cannot, they say so at the start."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.hosts.conftest import MakeLan
from tests.hosts.lan import DEBIAN, RIGHT
from tests.hosts.training import (
    ENVIRONMENT,
    SECONDS,
    by_ip,
    by_name,
    check_trained,
    jax_variables,
    start_job,
    start_workers,
    tf_config,
)

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess]
STEPS = 3


@pytest.mark.parametrize(
    ("line", "ipv6", "written", "told"),
    [
        pytest.param(DEBIAN, False, by_ip, tf_config, id="Debian's hosts file, addresses", marks=pytest.mark.nightly),
        pytest.param(DEBIAN, False, by_name, tf_config, id="Debian's hosts file, names"),
        pytest.param(DEBIAN, False, by_name, jax_variables, id="Debian's hosts file, the first one's name only"),
        pytest.param(DEBIAN, True, by_ip, tf_config, id="Debian's hosts file, IPv6"),
        pytest.param(RIGHT, False, by_name, tf_config, id="right hosts file, names", marks=pytest.mark.nightly),
        pytest.param("", False, by_ip, tf_config, id="names that nobody knows, addresses"),
    ],
)
def test_two_hosts_train_as_one_device(make_lan: MakeLan, line: str, ipv6: bool, written: Any, told: Any):
    lan = make_lan("alpha", "beta", line=line, ipv6=ipv6)
    check_trained(start_workers(lan, written(lan), told, steps=STEPS), STEPS)


def test_three_hosts_train_as_one_device(make_lan: MakeLan):
    lan = make_lan("alpha", "beta", "gamma")
    check_trained(start_workers(lan, by_name(lan), steps=STEPS, stall_timeout=None), STEPS)


def test_two_workers_on_one_host_and_one_on_another(make_lan: MakeLan):
    """Those two know only the name of the host that they are on; the third tells them the address."""
    lan = make_lan("alpha", "beta")
    addresses = [f"alpha:{port}" for port in (2222, 2223, 2224)]
    hosts = [lan.hosts[0], lan.hosts[0], lan.hosts[1]]
    workers = [start_job(host, "workers", jax_variables(addresses, i), steps=STEPS) for i, host in enumerate(hosts)]
    check_trained(workers, STEPS)


def test_where_jax_was_connected_before(make_lan: MakeLan):
    lan = make_lan("alpha", "beta")
    check_trained(start_workers(lan, by_name(lan), connect="alpha:2222", steps=STEPS), STEPS)


def test_a_name_that_nobody_knows(make_lan: MakeLan):
    lan = make_lan("alpha", "beta", line="")
    worker = start_job(lan.hosts[1], "workers", tf_config(by_name(lan), 1), steps=STEPS, start_timeout=4)
    assert worker.wait(SECONDS) == 1, worker.log
    for words in (
        "worker:1 waits for the name service",
        "ClusterError: The address of worker:1 cannot be used: 'beta' is a name that is not known here",
        "whose name 'beta' means nothing, got 'beta:2222'",
        "This machine reaches the others from 10.73.0.2. Let the hosts file or the name service say '10.73.0.2 beta'.",
    ):
        assert words in worker.log, worker.log


def test_a_name_that_stands_for_another_address(make_lan: MakeLan):
    lan = make_lan("alpha", "beta", line="10.73.0.77 {name}")
    worker = start_job(lan.hosts[1], "workers", tf_config(by_name(lan), 1), steps=STEPS, start_timeout=1)
    assert worker.wait(SECONDS) == 1, worker.log
    assert "cannot be used: 'beta' means 10.73.0.77, which is not an address of this machine" in worker.log
    assert "'10.73.0.2 beta'" in worker.log
    doctor = lan.hosts[1].start(
        "python", "-m", "replicax", "doctor", "--quick", **ENVIRONMENT, **tf_config(by_name(lan), 1)
    )
    assert doctor.wait(SECONDS) == 1, doctor.log
    assert re.search(r"FAIL +own address", doctor.log), doctor.log


def test_the_task_of_another_machine(make_lan: MakeLan):
    lan = make_lan("alpha", "beta")
    worker = start_job(lan.hosts[1], "workers", tf_config(by_ip(lan), 0), steps=STEPS)  # It is told to be alpha.
    assert worker.wait(SECONDS) == 1, worker.log
    assert (
        "The address of worker:0 cannot be used: '10.73.0.1' means 10.73.0.1, which is not an address of" in worker.log
    )
    assert "Make sure that each machine gets its own task" in worker.log


@pytest.mark.parametrize("stall_timeout", [None, 30])
def test_an_address_that_others_cannot_connect_with(make_lan: MakeLan, stall_timeout: float | None):
    """All of them end at once, and say the same."""
    lan = make_lan("alpha", "beta", "gamma")
    assert lan.hosts[1].start("ip", "address", "add", "10.74.0.9/32", "dev", "lo").wait(SECONDS) == 0
    addresses = by_ip(lan)
    workers = [
        start_job(
            host,
            "workers",
            {**tf_config(addresses, i), **({"REPLICAX_HOST": "10.74.0.9"} if i == 1 else {})},
            steps=STEPS,
            stall_timeout=stall_timeout,
        )
        for i, host in enumerate(lan.hosts)
    ]
    for worker in workers:
        assert worker.wait(SECONDS) != 0
        assert "ClusterError: The cluster cannot train: " in worker.log, worker.log
        for i, ip in ((0, "10.73.0.1"), (2, "10.73.0.3")):
            who = f"worker:{i} at {ip}:2222 ({ip}) cannot connect with worker:1 at 10.73.0.2:2222 (10.74.0.9:"
            assert who in worker.log, worker.log
        assert "Network is unreachable" in worker.log
