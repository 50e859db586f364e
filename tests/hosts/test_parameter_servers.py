"""Parameter servers and workers on several hosts, whatever the hosts' names stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tests.hosts.conftest import MakeLan
from tests.hosts.host import Host, Process
from tests.hosts.lan import Lan
from tests.hosts.training import ENVIRONMENT, by_ip, by_name, check_trained, start_job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
STEPS = 3
TOKEN = {"REPLICAX_TOKEN": "0123456789abcdef" * 2}


def serve(host: Host, cluster: dict[str, list[str]], job: str, index: int) -> Process:
    task = ["--job", job, "--index", str(index)]
    command = ["python", "-m", "replicax", "server", "--no-dashboard", "--cluster", json.dumps(cluster), *task]
    return host.start(*command, **ENVIRONMENT, **TOKEN)


def coordinate(host: Host, cluster: dict[str, list[str]], steps: int = STEPS, pause: float = 0.0) -> Process:
    document = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    return start_job(host, "coordinator", {"TF_CONFIG": json.dumps(document), **TOKEN}, steps=steps, pause=pause)


@pytest.mark.parametrize("written", [by_name, by_ip])
def test_a_coordinator_on_a_machine_of_its_own(make_lan: MakeLan, written: Callable[[Lan], Sequence[str]]):
    lan = make_lan("alpha", "beta", "gamma")
    addresses = written(lan)
    cluster = {"ps": [addresses[0]], "worker": [addresses[1]], "chief": [addresses[2]]}
    servers = [serve(lan.hosts[0], cluster, "ps", 0), serve(lan.hosts[1], cluster, "worker", 0)]
    check_trained([coordinate(lan.hosts[2], cluster)], STEPS)
    assert all(server.is_running() for server in servers)
