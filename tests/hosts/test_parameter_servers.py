"""Parameter servers and workers on several hosts, whatever the hosts' names stand for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replicax.errors import ExitCode
from tests.hosts.conftest import MakeLan
from tests.hosts.host import Host, Process
from tests.hosts.lan import Lan
from tests.hosts.training import ENVIRONMENT, PORT, SECONDS, by_ip, by_name, check_trained, start_job

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess, pytest.mark.slow]
STEPS = 3
STALL_S = 4.0
SECONDS_TO_LEAVE = 30.0  # a Ray that does not answer
ROOM_S = 30.0  # for a busy machine
FOREVER = 10_000
TOKEN = {"REPLICAX_TOKEN": "0123456789abcdef" * 2}


def serve(host: Host, cluster: dict[str, list[str]], job: str, index: int) -> Process:
    task = ["--job", job, "--index", str(index)]
    command = ["python", "-m", "replicax", "server", "--no-dashboard", "--cluster", json.dumps(cluster), *task]
    return host.start(*command, **ENVIRONMENT, **TOKEN)


def coordinate(host: Host, cluster: dict[str, list[str]], steps: int = STEPS, pause: float = 0.0) -> Process:
    document = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    return start_job(host, "coordinator", {"TF_CONFIG": json.dumps(document), **TOKEN}, steps=steps, pause=pause)


@pytest.mark.parametrize("written", [by_name, pytest.param(by_ip, marks=pytest.mark.nightly)])
def test_a_coordinator_on_a_machine_of_its_own(make_lan: MakeLan, written: Callable[[Lan], Sequence[str]]):
    lan = make_lan("alpha", "beta", "gamma")
    addresses = written(lan)
    cluster = {"ps": [addresses[0]], "worker": [addresses[1]], "chief": [addresses[2]]}
    servers = [serve(lan.hosts[0], cluster, "ps", 0), serve(lan.hosts[1], cluster, "worker", 0)]
    check_trained([coordinate(lan.hosts[2], cluster)], STEPS)
    assert all(server.is_running() for server in servers)


def start_counting(lan: Lan, tasks: Sequence[tuple[str, int]], **arguments: Any) -> Process:
    """Starts a task on each host, and the coordinator on the first one; returns the coordinator."""
    cluster: dict[str, list[str]] = {"ps": [], "worker": [], "chief": [f"{lan.addresses[0]}:{PORT + 1}"]}
    for (job, _), address in zip(tasks, by_ip(lan), strict=True):
        cluster[job].append(address)
    for host, (job, index) in zip(lan.hosts, tasks, strict=True):
        serve(host, cluster, job, index)
    document = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    environment = {"TF_CONFIG": json.dumps(document), **TOKEN}
    coordinator = start_job(lan.hosts[0], "counter", environment, stall_timeout=STALL_S, pause=0.25, **arguments)
    coordinator.wait_for("round 5\n", SECONDS)
    return coordinator


def steps_applied(coordinator: Process) -> int:
    """Returns how many steps each of the weights has seen, when the coordinator has ended well."""
    assert coordinator.wait(SECONDS) == 0, coordinator.log
    found = re.search(r"^weights (.*)$", coordinator.log, re.MULTILINE)
    assert found, coordinator.log
    (counted,) = set(np.ravel(json.loads(found[1])).tolist())
    return -int(counted)


def test_the_steps_of_a_worker_that_is_cut_off_go_to_another_one(make_lan: MakeLan):
    lan = make_lan("alpha", "beta", "gamma")
    coordinator = start_counting(lan, [("ps", 0), ("worker", 0), ("worker", 1)], rounds=30)
    since = time.monotonic()
    lan.hosts[2].cable.lose()
    # It answers nothing and does no step any more: either may be seen first.
    coordinator.wait_for("for 4 s: it is ended, and another one takes its place.", STALL_S + ROOM_S)
    assert re.search(r"worker:1 has (not answered|got no further with its steps) for 4 s", coordinator.log)
    assert time.monotonic() - since > STALL_S - 1.5
    assert steps_applied(coordinator) == 60


def test_a_server_that_is_cut_off_for_a_while_is_recovered(make_lan: MakeLan, tmp_path: Path):
    lan = make_lan("alpha", "beta", "gamma")
    tasks = [("ps", 0), ("worker", 0), ("ps", 1)]
    coordinator = start_counting(lan, tasks, rounds=24, saved=2, folder=str(tmp_path))
    lan.hosts[2].cable.lose()
    coordinator.wait_for("ps:1 has not answered for 4 s", STALL_S + ROOM_S)
    lost = 2 * (max(map(int, re.findall(r"^round (\d+)$", coordinator.log, re.MULTILINE))) - 2)
    lan.hosts[2].cable.mend()
    assert 48 - lost - 2 <= steps_applied(coordinator) <= 48 - lost


def test_without_the_machine_of_the_first_server_the_coordinator_ends(make_lan: MakeLan):
    lan = make_lan("alpha", "beta")
    coordinator = start_counting(lan, [("worker", 0), ("ps", 0)], rounds=FOREVER)
    lan.hosts[1].cable.lose()
    assert coordinator.wait(4 * STALL_S + SECONDS_TO_LEAVE + ROOM_S) == ExitCode.PEER_LOST, coordinator.log
    assert "ps:0 has not answered for 4 s" in coordinator.log
    assert re.search(r"^[\w.]*ParameterServerLost: A parameter server was lost", coordinator.log, re.MULTILINE)
    assert re.search(r"^[\w.]*ParameterServerLost: Ray's head at \S+ is gone", coordinator.log, re.MULTILINE)
