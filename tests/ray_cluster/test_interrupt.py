"""Ctrl-C ends a training, whatever has become of Ray's own processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from replicax.ray_cluster import node_reaper
from tests.ray_cluster.conftest import LIMIT_S, OF_CLUSTERS, assert_nothing_left, heads, wait_for

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.multiprocess,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]
ENDS_WITHIN_S = 40.0
JOB = """
import glob, os, time
import numpy as np, replicax as rx
if __name__ == "__main__":
    strategy = rx.ParameterServerStrategy(workers=1, servers=1, dashboard=False)
    with strategy.scope():
        count = rx.Variable(0.0)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    def step(x):
        count.assign_add(x)
    coordinator.schedule(step, args=(np.float32(1),)).fetch()
    print(*glob.glob(f"/tmp/rx-{os.getpid()}-*"), flush=True)
    while True:
        coordinator.schedule(step, args=(np.float32(1),))
        coordinator.join()
"""


def test_one_interrupt_ends_a_job_whose_head_is_stopped(tmp_path: Path):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
    with subprocess.Popen(
        [sys.executable, str(script)], env=clean, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        try:
            assert job.stdout is not None
            folder = job.stdout.readline().strip()
            assert folder, job.stderr.read() if job.stderr else ""
            (head,) = heads(folder)
            os.kill(head, signal.SIGSTOP)
            time.sleep(1)
            begin = time.monotonic()
            job.send_signal(signal.SIGINT)
            _, said = job.communicate(timeout=LIMIT_S)
            seconds = time.monotonic() - begin
        finally:
            job.kill()
    assert "KeyboardInterrupt" in said
    assert job.returncode != 0
    assert seconds < ENDS_WITHIN_S, said
    wait_for(lambda: not node_reaper.marked(folder), 30)
    assert_nothing_left(folder)
