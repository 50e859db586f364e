"""Starts that are slow, and starts that do not come to their end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.errors import ExitCode
from replicax.testing import free_ports

START = Path(__file__).resolve().parent.parent / "soak" / "start.py"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.nightly
def test_a_start_with_large_variables_on_a_busy_machine_is_no_alarm():
    command = [sys.executable, str(START), "--starts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("RESULT false_alarms 0\n")


STOPS = """
import os, signal, sys
import replicax as rx
import replicax.cluster.runtime as runtime

connect = runtime._initialize

def stop_and_connect(*arguments):
    if sys.argv[1] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    connect(*arguments)

runtime._initialize = stop_and_connect
rx.MultiWorkerMirroredStrategy(start_timeout=15)
"""


@pytest.mark.multiprocess
@pytest.mark.slow
def test_who_is_stopped_while_jax_connects_is_named():
    """All have met by then, and JAX's own wait would abort the others without a word of who it is."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(3)]}
    started = []
    try:
        for index in range(3):
            told = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
            environment = {**os.environ, "TF_CONFIG": told, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-c", STOPS, str(index)]
            started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        for index in (0, 2):
            said = started[index].communicate(timeout=120)[1]
            assert started[index].returncode == ExitCode.FAILED, said
            name = f"worker:1 at {cluster['worker'][1]}"
            assert f"for {name}; came, but does not answer any more (stopped?): {name}" in said, said
    finally:
        for process in started:
            process.kill()
            process.communicate()
