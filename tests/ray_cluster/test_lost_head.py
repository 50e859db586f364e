"""A training whose head (Ray's GCS) is gone ends with our words and exit code, and not where Ray ends the process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from replicax.errors import ExitCode
from replicax.ray_cluster import head as head_module
from replicax.ray_cluster.deadline import PATIENCE
from replicax.ray_cluster.head import Head, HeadWatch, limit, outliving
from replicax.ray_cluster.nodes import answers, refuses
from replicax.testing import free_ports
from tests.ray_cluster.conftest import LIMIT_S, OF_CLUSTERS, assert_nothing_left, heads, wait_for

ENDS_WITHIN_S = 60.0
OFTEN = PATIENCE._replace(again=0.01)
READY = "ready:"
LIMIT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
JOB = """
import glob, os, sys, time
import numpy as np, replicax as rx
if __name__ == "__main__":
    waits, checkpoints, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    strategy = rx.ParameterServerStrategy(**options)
    with strategy.scope():
        count = rx.Variable(0.0)
    manager = rx.CheckpointManager(checkpoints, objects={"count": count}) if checkpoints else None
    coordinator = rx.coordinator.ClusterCoordinator(strategy, checkpoint_manager=manager)
    def step(x):
        count.assign_add(x)
    coordinator.schedule(step, args=(np.float32(1),)).fetch()
    if manager is not None:
        manager.save(0)
    print("ready:", *glob.glob(f"/tmp/rx-{os.getpid()}-*"), flush=True)
    while True:
        value = coordinator.schedule(step, args=(np.float32(1),))
        coordinator.join() if waits == "join" else value.fetch()
        time.sleep(0.1)
"""


def test_the_limit_is_the_users_and_this_process_outlives_the_others():
    assert limit({}) == 60
    assert limit({}, "10") == 10
    assert limit({LIMIT_VARIABLE: "7"}, "10") == 7
    assert limit({LIMIT_VARIABLE: "soon"}, "10") == 10
    assert int(outliving(7)[LIMIT_VARIABLE]) > 60


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """What is found at each look, the last one ever after."""
    found: list[bool] = []
    monkeypatch.setattr(head_module, "answers", lambda _: found.pop(0) if len(found) > 1 else found[0])
    monkeypatch.setattr(head_module, "refuses", lambda _: True)
    return found


def test_a_head_that_is_gone_for_too_long_is_told_once(looks: list[bool]):
    looks += [True, False]
    told: list[Exception] = []
    watch = HeadWatch(Head("the head", "127.0.0.1:1", patience=0.2), told.append, OFTEN)
    begin = time.monotonic()
    watch.start()
    wait_for(lambda: told, 10)
    assert time.monotonic() - begin > 0.2
    time.sleep(0.3)
    watch.stop()
    assert len(told) == 1
    assert "the head is gone" in str(told[0])


def test_a_head_that_comes_back_is_not_lost(looks: list[bool]):
    looks += [False] * 6 + [True]
    told: list[Exception] = []
    watch = HeadWatch(Head("the head", "127.0.0.1:1", patience=0.3), told.append, OFTEN)
    watch.start()
    time.sleep(0.6)
    watch.stop()
    assert not told


def test_a_network_that_is_down_has_more_time(looks: list[bool], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(head_module, "refuses", lambda _: False)
    head = Head("the head", "127.0.0.1:1", patience=8)
    assert not head.is_given_up(50)
    assert head.is_given_up(61)


def test_who_refuses_a_connection_is_there_and_does_not_listen():
    (port,) = free_ports(1)
    assert refuses(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", port)):
        assert not refuses(f"127.0.0.1:{port}")


# With Ray.

with_ray = [
    pytest.mark.multiprocess,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]


@contextlib.contextmanager
def job(tmp_path: Path, waits: str, checkpoints: str, options: str, **environment: str) -> Iterator[subprocess.Popen]:
    """Starts a training."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'replicax[ray]'")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
    command = [sys.executable, str(script), waits, checkpoints, options]
    with subprocess.Popen(
        command, env={**clean, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def first_line(started: subprocess.Popen) -> str:
    """Returns the job's first line; Ray shows lines of others, too, such as those of an earlier libtpu."""
    assert started.stdout is not None
    for line in started.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise AssertionError(started.stderr.read() if started.stderr else "")


def assert_ends_with_our_words(started: subprocess.Popen, head: int) -> None:
    os.kill(head, signal.SIGKILL)
    begin = time.monotonic()
    _, said = started.communicate(timeout=LIMIT_S)
    assert time.monotonic() - begin < ENDS_WITHIN_S, said
    assert "is gone: nobody answers there any more" in said
    assert "Start the job again" in said
    assert "The program will terminate" not in said  # Ray's words.
    assert started.returncode == ExitCode.PEER_LOST, said


class TestWithRay:
    pytestmark = with_ray

    @pytest.mark.nightly
    @pytest.mark.parametrize("waits", [pytest.param("join", marks=pytest.mark.nightly), "fetch"])
    def test_a_job_with_a_cluster_of_its_own(self, tmp_path: Path, waits: str):
        with job(tmp_path, waits, "", "dict(workers=1, servers=1, dashboard=False)") as started:
            folder = first_line(started)
            (head,) = heads(folder)
            assert_ends_with_our_words(started, head)
        assert_nothing_left(folder)

    @pytest.mark.parametrize("saves", [False, True])
    @pytest.mark.nightly
    def test_a_job_on_servers(self, tmp_path: Path, saves: bool):
        chief, ps, *workers = (f"127.0.0.1:{port}" for port in free_ports(4))
        spec = {"chief": [chief], "ps": [ps], "worker": workers}
        token = {"REPLICAX_TOKEN": "0123456789abcdef" * 2}
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
        servers = []
        try:
            for name, index in [("ps", 0), ("worker", 0), ("worker", 1)]:
                command = [sys.executable, "-m", "replicax", "server", "--no-dashboard"]
                command += ["--cluster", json.dumps(spec), "--job", name, "--index", str(index)]
                with (tmp_path / f"{name}-{index}.log").open("wb") as log:
                    servers.append(
                        subprocess.Popen(
                            command, env={**clean, **token}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                        )
                    )
            wait_for(lambda: answers(ps))
            cluster = json.dumps({"cluster": spec, "task": {"type": "chief", "index": 0}})
            checkpoints = str(tmp_path / "checkpoints") if saves else ""
            with job(tmp_path, "join", checkpoints, "{}", TF_CONFIG=cluster, **token) as started:
                first_line(started)
                (folder,) = Path("/tmp").glob(f"rx-{servers[0].pid}-*")
                (head,) = heads(str(folder))
                assert_ends_with_our_words(started, head)
            for server in servers:
                server.wait(LIMIT_S)
        finally:
            for server in servers:
                server.kill()
            for server in servers:
                server.wait(LIMIT_S)
                wait_for(lambda pid=server.pid: not [*Path("/tmp").glob(f"rx-{pid}-*")], 30)
