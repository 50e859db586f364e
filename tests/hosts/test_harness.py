"""The hosts of the tests: their network does what it is told, and nothing of them outlives a test, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hosts.conftest import MakeLan
from tests.hosts.host import ROOT, Host, Process

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess]
SCRIPT = """
import sys, tempfile, time
from pathlib import Path
from tests.hosts.lan import Lan

with Lan(["alpha", "beta"], Path(tempfile.mkdtemp(dir=sys.argv[1]))) as lan:
    for host in lan.hosts:
        host.start("sh", "-c", "echo here; sleep 1000").wait_for("here")
    print(*(host.network() for host in lan.hosts), flush=True)
    time.sleep(1000)
"""


def processes_in(networks: list[str]) -> list[str]:
    """Returns the processes that have one of these networks."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "ns" / "net") in networks:
                found.append(process.name)
        except OSError:  # It has ended in between.
            continue
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_test(make_lan: MakeLan, tmp_path: Path, number: int):
    make_lan("gamma")  # Says so if this machine cannot make hosts.
    test = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert test.stdout is not None
    networks = test.stdout.readline().split()
    test.stdout.close()
    assert len(networks) == 2
    assert len(processes_in(networks)) >= 4
    test.send_signal(number)
    test.wait(30)
    deadline = time.monotonic() + 30
    while processes_in(networks) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_in(networks) == []


def ping(host: Host, address: str) -> Process:
    """Tries to connect for 2 s; 0 says that the other host has answered, also with a refusal."""
    code = (
        "import socket, sys\n"
        "try:\n    socket.create_connection((sys.argv[1], 9), timeout=2)\n"
        "except ConnectionRefusedError: pass\n"
    )
    return host.start("python", "-c", code, address)


def test_cables(make_lan: MakeLan):
    lan = make_lan("alpha", "beta", "gamma")
    alpha, beta, _ = lan.hosts
    assert ping(alpha, "beta").wait(30) == 0
    beta.cable.cut()
    assert ping(alpha, "beta").wait(30) != 0
    assert ping(alpha, "gamma").wait(30) == 0
    beta.cable.mend()
    assert ping(beta, "alpha").wait(30) == 0
    beta.cable.lose(from_host=False)
    assert ping(beta, "alpha").wait(30) != 0
    beta.cable.mend()
    beta.cable.slow(delay_s=0.3, bytes_per_s=0.0)
    start = time.monotonic()
    assert ping(alpha, "beta").wait(30) == 0
    assert time.monotonic() - start > 0.3
