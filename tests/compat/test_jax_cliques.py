"""Sums between processes that JAX has not connected, in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
