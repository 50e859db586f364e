"""Clients and real servers: one cluster of two for all tests, and each test leaves it ready for the next."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replicax.testing import free_ports
from tests.ray_cluster.conftest import OF_CLUSTERS, wait_for

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
LIMIT_S = 240.0
MARK = "REPLICAX_TEST_OF_CLIENTS"

PREAMBLE = """
import json, os, signal, sys, threading, time
import numpy as np
import replicax as rx
from replicax.errors import *
servers = json.loads(os.environ["SERVERS"])
begin = time.monotonic()
def connect(**options):
    return rx.MultiWorkerMirroredStrategy(remote_cluster=servers, **options)
def touch(name):
    open(os.path.join(os.environ["FOLDER"], name), "w").write(str(os.getpid()))
"""


class Servers:
    """Two servers, and the processes that come of them and of clients."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
        clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
        self.environment = {
            **clean,
            MARK: str(folder),
            "REPLICAX_TOKEN": "5" * 32,
            "SERVERS": json.dumps(self.cluster),
            "FOLDER": str(folder),
            "JAX_NUM_CPU_DEVICES": "1",
        }
        command = [sys.executable, "-m", "replicax", "server", "--no-dashboard", "--job", "worker"]
        self.processes = [
            subprocess.Popen(
                [*command, "--cluster", json.dumps(self.cluster), "--index", str(index)], env=self.environment
            )
            for index in range(2)
        ]

    def client(self, code: str) -> subprocess.Popen[str]:
        """Starts a client."""
        path = self.folder / "client.py"
        path.write_text(PREAMBLE + code)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, str(path)], env=self.environment, **pipes)

    def run(self, code: str) -> tuple[int, str, str]:
        """Runs a client to its end; returns its exit code and its output."""
        process = self.client(code)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err

    def told(self, name: str) -> int:
        """Waits until a worker has written a file; returns its process id."""
        path = self.folder / name
        wait_for(lambda: path.exists() and path.read_text(), LIMIT_S)
        return int(path.read_text())

    def forget(self) -> None:
        for path in self.folder.glob("*"):
            if path.is_file():
                path.unlink()

    def workers(self) -> list[int]:
        """Returns the processes that run for clients."""
        return [pid for pid in marked(str(self.folder)) if b"REPLICAX_CLIENT=" in environment_of(pid)]

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(60)


def environment_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def marked(folder: str) -> list[int]:
    """Returns all living processes that come of a cluster of servers or its clients."""
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    mark = f"{MARK}={folder}".encode()
    return [pid for pid in pids if mark in environment_of(pid).split(b"\0")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    servers = Servers(tmp_path_factory.mktemp("servers"))
    try:
        yield servers
    finally:
        servers.close()
    wait_for(lambda: not marked(str(servers.folder)), 60)


@pytest.fixture
def servers(cluster: Servers) -> Iterator[Servers]:
    cluster.forget()
    yield cluster
    wait_for(lambda: not cluster.workers(), 60)
    assert all(process.poll() is None for process in cluster.processes)


TRAINING = """
import keras, numpy as np
keras.utils.set_random_seed(2)
strategy = connect() if "SERVERS" in os.environ and not os.environ.get("REPLICAX_LAUNCHER_PID") else (
    rx.MultiWorkerMirroredStrategy())
x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
with strategy.scope():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.2),
                              keras.layers.Dense(1)])
    model.compile("adam", "mse")
losses = [model.fit(x, x[:, :1], batch_size=8, verbose=0).history["loss"] for _ in range(2)]
if strategy.is_chief:
    print("FOUND", losses, [float(np.abs(np.asarray(v, "float64")).sum()) for v in model.variables])
strategy.close()
"""


@pytest.mark.nightly
def test_a_client_computes_what_replicax_run_computes(servers: Servers):
    code, out, err = servers.run(TRAINING)
    assert code == 0, err
    path = servers.folder / "client.py"
    command = [sys.executable, "-m", "replicax", "run", "--workers", "2", "--log-dir", str(servers.folder / "logs")]
    done = subprocess.run(
        [*command, str(path)], env=servers.environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "FOUND" in out
    assert [line for line in out.splitlines() if "FOUND" in line] == [
        line.removeprefix("[worker 0] ") for line in done.stdout.splitlines() if "FOUND" in line
    ]


RUNNING = """
strategy = connect()
def train():
    own = rx.MultiWorkerMirroredStrategy()
    touch(f"worker-{own.worker_index}")
    for batch in own.distribute_dataset([np.ones(2, "float32")] * 400000):
        own.reduce("sum", own.run(lambda x: x.sum(), (batch,)))
try:
    strategy.remote(train)
except BaseException as error:
    print("RAISED", type(error).__name__, error, time.monotonic() - begin)
try:
    print("AGAIN", strategy.remote(max, 1, 2))
except ReplicaxError as error:
    print("AGAIN", type(error).__name__, error)
"""


def end_client(servers: Servers, client: subprocess.Popen[str], number: int) -> None:
    client.send_signal(number)


def end_workers(*indices: int, number: int = signal.SIGKILL) -> Callable[..., None]:
    def end(servers: Servers, client: subprocess.Popen[str]) -> None:
        for index in indices:
            os.kill(servers.told(f"worker-{index}"), number)

    return end


def end_host(servers: Servers, client: subprocess.Popen[str]) -> None:
    worker = servers.told("worker-1")
    os.kill(int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("end", "says", "again"),
    [
        (end_workers(1), "RAISED RemoteWorkerError worker 1 failed: exit code 137: ended by SIGKILL", "AGAIN 2"),
        (end_workers(0, 1), "RAISED RemoteWorkerError worker", "AGAIN 2"),
        (
            end_host,
            "RAISED RemoteWorkerError worker 1 failed: .*worker:1 at .* is gone",
            "AGAIN RemoteWorkerError .*lost",
        ),
    ],
    ids=["a worker", "both workers", "a host"],
)
def test_who_is_killed_is_named(servers: Servers, end, says: str, again: str):
    client = servers.client(RUNNING)
    for index in range(2):
        servers.told(f"worker-{index}")
    end(servers, client)
    out, err = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 0, err
    assert re.search(f"(?s){says}", out), out
    assert re.search(f"(?s){again}", out), out


OTHERS = [pytest.param(number, marks=pytest.mark.nightly) for number in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize("number", [signal.SIGKILL, *OTHERS], ids=["kill", "Ctrl-C", "term"])
@pytest.mark.nightly
def test_the_end_of_the_client_is_the_end_of_its_workers_and_the_next_one_is_served(servers: Servers, number: int):
    client = servers.client(RUNNING.replace("except BaseException as error:", "except Exception as error:"))
    workers = [servers.told(f"worker-{index}") for index in range(2)]
    client.send_signal(number)
    _, err = client.communicate(timeout=LIMIT_S)
    assert client.returncode != 0
    if number == signal.SIGINT:
        assert "KeyboardInterrupt" in err
    wait_for(lambda: not {*servers.workers()} & {*workers}, 90)
    code, out, err = servers.run("print(connect().remote_all(os.getpid))")
    assert code == 0, err
    assert len(set(eval(out))) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.nightly
def test_a_server_that_is_killed_is_named_and_nothing_stays(tmp_path: Path, index: int):
    servers = Servers(tmp_path)
    try:
        client = servers.client(RUNNING)
        for worker in range(2):
            servers.told(f"worker-{worker}")
        servers.processes[index].kill()
        out, err = client.communicate(timeout=LIMIT_S)
        assert client.returncode == 0, err
        assert re.search(rf"RAISED RemoteWorkerError worker {index} failed: its server .* was lost", out), out
        assert re.search(
            rf"(?s)AGAIN RemoteWorkerError worker {index} failed: .*lost before .*worker:{index} at ", out
        ), out
        wait_for(lambda: not servers.workers(), 60)
    finally:
        servers.close()
    wait_for(lambda: not marked(str(tmp_path)), 60)


@pytest.mark.nightly
def test_a_second_client_is_refused_while_the_first_one_is_there(servers: Servers):
    client = servers.client('connect(); touch("connected"); time.sleep(1000)')
    servers.told("connected")
    code, _, err = servers.run("connect()")
    assert code == 1
    assert f"is in use by another client: process {client.pid} on " in err
    client.kill()
    client.communicate()
    code, out, err = servers.run("print(connect().num_replicas_in_sync)")
    assert (code, out) == (0, "2\n"), err


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_stopped_worker_is_missed(servers: Servers):
    client = servers.client(
        RUNNING.replace("MultiWorkerMirroredStrategy()", "MultiWorkerMirroredStrategy(stall_timeout=5)")
    )
    servers.told("worker-0")
    pid = servers.told("worker-1")
    time.sleep(2)
    os.kill(pid, signal.SIGSTOP)
    out, err = client.communicate(timeout=LIMIT_S)
    assert "RAISED RemoteWorkerError worker 1 failed" in out, out + err
    assert "AGAIN 2" in out
