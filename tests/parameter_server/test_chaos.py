"""The short form of `tests/soak/ps_chaos.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")
pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess, pytest.mark.timeout(600)]
CHAOS = Path(__file__).resolve().parent.parent / "soak" / "ps_chaos.py"


def test_nothing_is_lost_when_a_worker_is_stopped_and_a_server_killed_at_once():
    strikes = "worker:SIGSTOP,ps:SIGKILL"
    command = [sys.executable, str(CHAOS), "--faults", "2", "--at-once", "2", "--steps", "30", "--strike", strikes]
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "JAX_NUM_CPU_DEVICES")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment, check=False)
    # It checks what it prints: steps, updates, accuracy, shared memory in use and processes that are left.
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RESULT ps_faults_survived 2" in done.stdout
