"""Sums between processes that JAX has not connected, in processes of their own."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

from replicax.compat.jax_cliques import StoreClient
from replicax.errors import MeetingError

pytestmark = pytest.mark.multiprocess
ROOT = Path(__file__).resolve().parents[2]
MEMBER = """
    import os, sys, threading, time
    import numpy as np
    from replicax.compat.jax_cliques import Clique
    rank = int(sys.argv[2])
    clique = Clique(sys.argv[1], rank, 2, "127.0.0.1", 30)
    parts = [np.full(3, rank + 1, "float32"), np.array([2**31 + rank], "uint32"), np.ones(2, "bfloat16")]
    print(*clique.total(parts), "all-reduce" in clique.lowered(parts), flush=True)
    if rank == 0:
        sys.stdin.readline()  # Until the other one is stopped.
        threading.Timer(0.5, clique.interrupt).start()
        try:
            clique.total(parts)
        except RuntimeError as error:
            print("failed:", type(error).__name__, flush=True)
        import jax
        print(len(jax.devices()), jax.process_count(), float(jax.numpy.ones(3).sum()), flush=True)
    else:
        time.sleep(60)
"""
HOST = """
    import os, sys
    from replicax.compat.jax_cliques import Service, StoreClient
    import socket
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = "127.0.0.1:%d" % probe.getsockname()[1]
    service, store = Service(address), StoreClient(address, 30)
    assert store.put_if_absent("a/b", b"1") and not store.put_if_absent("a/b", b"2")
    store.put("a/b", b"3")
    assert store.get("a/b", 1.0) == b"3" and store.get("c", 0.01) is None
    assert store.listing("a") == {"a/b": b"3"} and store.listing("x") == {}
    store.delete("a")
    assert store.listing("a") == {} and not service.is_used()
    print(address, flush=True)
    sys.stdin.readline()
    print(service.is_used(), flush=True)
    sys.stdin.read()
    os._exit(0)
"""


@pytest.fixture
def start():
    started = []

    def run(script, *arguments):
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        started.append(process)
        return process

    yield run
    for process in reversed(started):
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def line(process):
    """Returns the next line that a process prints; Gloo prints some of its own."""
    while True:
        found = process.stdout.readline()
        assert found, "the process has ended"
        if not found.startswith("[Gloo]"):
            return found.strip()


def test_a_sum_that_waits_for_a_stopped_process_is_interrupted(start):
    host = start(HOST)
    address = line(host)
    members = [start(MEMBER, address, str(rank)) for rank in range(2)]
    for member in members:
        assert line(member) == "[3. 3. 3.] [1] [2 2] True"
    host.stdin.write("\n")
    host.stdin.flush()
    assert line(host) == "True"
    os.kill(members[1].pid, signal.SIGSTOP)
    members[0].stdin.write("\n")
    members[0].stdin.flush()
    assert line(members[0]).startswith("failed: ")
    assert line(members[0]) == "1 1 3.0"


class Answers:
    """A client of JAX's that fails some times before it answers."""

    def __init__(self, *failures):
        self.failures, self.asked = list(failures), 0

    def key_value_dir_get_bytes(self, prefix):
        self.asked += 1
        if self.failures:
            raise jax.errors.JaxRuntimeError(self.failures.pop(0))
        return [("a/b", b"1")]


@pytest.fixture
def listening():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def store(address, client, patience_s):
    made = StoreClient.__new__(StoreClient)
    made._address, made._patience_s, made.client = address, patience_s, client
    return made


def test_a_service_that_is_out_of_reach_for_a_moment_is_asked_again(listening):
    client = Answers("UNAVAILABLE: no route to host", "UNAVAILABLE: failed to connect")
    assert store(listening, client, 60.0).listing("a") == {"a/b": b"1"}
    assert client.asked == 3


def test_it_is_not_asked_for_ever(listening):
    with pytest.raises(MeetingError, match="cannot be reached"):
        store(listening, Answers(*["UNAVAILABLE: no route"] * 100), 0.5).listing("a")


def test_one_that_has_ended_is_not_waited_for():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    client = Answers(*["UNAVAILABLE: connection refused"] * 100)
    with pytest.raises(MeetingError):
        store(address, client, 600.0).listing("a")
    assert client.asked == 1


def test_other_failures_are_told_as_they_are(listening):
    with pytest.raises(jax.errors.JaxRuntimeError, match="INVALID"):
        store(listening, Answers("INVALID_ARGUMENT: no key"), 60.0).listing("a")


class Late:
    """A client of JAX's on a slow network: it gives up before the service has answered."""

    values = {"there": b"1"}  # noqa: RUF012

    def blocking_key_value_get_bytes(self, key, timeout_ms):
        raise jax.errors.JaxRuntimeError("DEADLINE_EXCEEDED: GetKeyValue() timed out")

    def key_value_try_get_bytes(self, key):
        if key not in self.values:
            raise jax.errors.JaxRuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.values[key]


def test_no_answer_in_time_does_not_mean_that_there_is_nothing(listening):
    assert store(listening, Late(), 1.0).get("there", 0.001) == b"1"
    assert store(listening, Late(), 1.0).get("not there", 0.001) is None
