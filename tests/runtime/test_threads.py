"""Threads that call compiled code are stopped before Python ends; one that is left over aborts the process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import replicax
from replicax.compat.jax_cliques import Service
from replicax.runtime.threads import StoppedAtEnd
from replicax.testing import free_ports

ROOT = Path(__file__).resolve().parent.parent.parent
_BEGIN = """
import atexit, sys, threading, time
from replicax.compat.jax_cliques import StoreClient
from replicax.runtime.threads import StoppedAtEnd

store, over, calls = StoreClient(sys.argv[1], 60.0), threading.Event(), []

def ask():
    while not over.is_set():
        calls.append(store.get("absent", 0.05))
"""
_STOPPED = "thread = StoppedAtEnd('asks', ask, stop=over.set)\nthread.start()\n"
_LEFT = "threading.Thread(target=ask, daemon=True).start()\n"
_ASKED = "while len(calls) < 3: time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A coordination service of JAX's."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    service = Service(address)
    yield address
    del service


def _ended(script: str, address: str) -> tuple[int, str]:
    # Without `tests/children`, for the end that users' processes have.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, "-c", _BEGIN + script, address]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        pytest.param("", 0, id="last line"),
        pytest.param("sys.exit(3)", 3, id="exit code"),
        pytest.param("1 / 0", 1, id="exception"),
    ],
)
def test_a_thread_in_compiled_code_is_stopped_before_python_ends(address: str, ending: str, code: int):
    after = "atexit.register(lambda: print('still asks', thread.is_alive()))\n"
    found, said = _ended(_STOPPED + after + _ASKED + ending, address)
    assert (found, "still asks True" in said) == (code, True), said


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python ends no thread any more")
def test_a_plain_daemon_thread_in_compiled_code_aborts_the_process(address: str):
    assert _ended(_LEFT + _ASKED, address)[0] == -6


def test_a_thread_that_does_not_stop_is_named_and_not_waited_for(address: str):
    code, said = _ended("StoppedAtEnd('stubborn', threading.Event().wait).start()", address)
    assert (code, "these threads have not stopped within 2 s: stubborn." in said) == (0, True), said


def test_stopping_asks_and_waits():
    asked = threading.Event()
    thread = StoppedAtEnd("waits", asked.wait, stop=asked.set)
    thread.start()
    thread.stop()
    thread.stop()
    assert not thread.is_alive()


def test_a_thread_may_stop_itself():
    asked, stopped = threading.Event(), threading.Event()

    def run() -> None:
        thread.stop()
        stopped.set()

    thread = StoppedAtEnd("itself", run, stop=asked.set)
    thread.start()
    assert stopped.wait(20)
    assert asked.is_set()


def test_waiting_for_a_thread_has_an_end():
    over = threading.Event()
    thread = StoppedAtEnd("slow", over.wait)
    thread.start()
    thread.stop(0.05)
    assert thread.is_alive()
    over.set()
    thread.join(20)


#: Daemon threads that call nothing compiled but Python's own sockets, files and locks, by their modules.
_PLAIN = {
    "group/health/observer.py": "asks other workers by HTTP",
    "group/health/client.py": "asks other workers by HTTP",
    "group/health/monitor.py": "looks at answers, and must go on until the process is gone",
    "group/health/reporting.py": "writes a report to a file",
    "group/health/server.py": "answers other workers by HTTP",
    "tools/doctor/network.py": "opens sockets",
    "job/launching/timed.py": "waits",
    "group/membership/store_watcher.py": "reads a socket",
    "group/membership/store_main.py": "its process ends by os._exit",
    "job/elsewhere/agent.py": "waits, and asks Ray; Ray ends its process",
    "job/processes/processes.py": "reads pipes",
    "job/processes/job_ledger.py": "reads files, and writes to a terminal",
    "cli/at_work.py": "waits, and prints",
    "data/readers/files.py": "asks a store by Python's own sockets",
    "runtime/clock.py": "is stopped, and awaited, as the last thing that its process does",
    "checkpoint/snapshots.py": "runtime.ending waits for it",
    "planning/compiling.py": "its process ends by os._exit",
}


def test_daemon_threads_that_are_not_stopped_call_no_compiled_code():
    root = Path(replicax.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"Thread\((?:[^()]|\([^()]*\))*daemon=True", path.read_text()) and path.name != "threads.py"
    }
    assert found == set(_PLAIN)
