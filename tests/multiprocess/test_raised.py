"""A script is told of a lost worker where it waits for it: its `except` and `finally` blocks run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from replicax.errors import ExitCode
from replicax.job.launching import Options, launch
from tests.multiprocess.stalls import ROOT, Job, job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
STALL_S = 4.0
LONGEST_S = 12.0
MODULE = "tests.multiprocess.raised"


def strike(running: Job, number: int, worker: int = 1, text: str = "step 3\n") -> float:
    running.wait_for(0, text)
    running.processes[worker].send_signal(number)
    return time.monotonic()


def check(running: Job, since: float, code: int, *said: str, worker: int = 0) -> str:
    found, ended = running.end(worker, 40)
    log = running.log(worker)
    print(f"ended after {ended - since:.1f} s")
    assert found == code, log
    assert ended - since < LONGEST_S, log
    for words in (*said, "finally"):
        assert words in log, log
    return log


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", ["read", "call", "fit", "agree"])
def test_a_killed_worker(tmp_path: Path, kind: str):
    with job(tmp_path, kind, 0.0, STALL_S, 100_000, MODULE) as running:
        since = strike(running, signal.SIGKILL)
        log = check(running, since, ExitCode.PEER_LOST, "caught 71 ('worker:1',) replicax: the job stands still")
        assert "is dead" in log
        assert kind == "fit" or "caught again" in log


@pytest.mark.daily(1)
@pytest.mark.parametrize("kind", ["read", "fit"])
def test_a_stopped_worker(tmp_path: Path, kind: str):
    with job(tmp_path, kind, 0.0, STALL_S, 100_000, MODULE) as running:
        since = strike(running, signal.SIGSTOP)
        check(running, since, ExitCode.STALLED, "caught 70 ('worker:1',) replicax: the job stands still")
        running.processes[1].send_signal(signal.SIGCONT)
        assert running.end(1, 40)[0] != 0


@pytest.mark.nightly
def test_process_0_is_stopped(tmp_path: Path):
    with job(tmp_path, "read", 0.0, STALL_S, 100_000, MODULE) as running:
        since = strike(running, signal.SIGSTOP, worker=0)
        check(running, since, ExitCode.STALLED, "caught 70 ('worker:0',) replicax: the job stands still", worker=1)


def test_an_error_that_is_not_caught_shows_the_line_that_waited(tmp_path: Path):
    with job(tmp_path, "uncaught", 0.0, STALL_S, 100_000, MODULE) as running:
        since = strike(running, signal.SIGKILL)
        log = check(running, since, ExitCode.PEER_LOST, "replicax.errors.WorkerLostError: replicax: the job stands")
        assert "in go\n" in log


@pytest.mark.nightly
def test_a_script_that_does_not_end_is_ended(tmp_path: Path):
    with job(tmp_path, "read", 1000.0, STALL_S, 100_000, MODULE, REPLICAX_END_TIMEOUT="2") as running:
        since = strike(running, signal.SIGKILL)
        code, ended = running.end(0, 60)
        log = running.log(0)
        assert code == ExitCode.PEER_LOST
        assert ended - since < LONGEST_S, log
        assert "caught 71" in log
        assert "finally" not in log


def test_under_the_launcher_the_script_is_told_too(tmp_path: Path, capfd: pytest.CaptureFixture):
    script = tmp_path / "script.py"
    script.write_text(f"from {MODULE} import train\ntrain('kill', 0.0, 10.0, 100)\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    options = Options(str(script), workers=2, log_dir=tmp_path / "logs")
    code = launch(options, environment=environment)
    log = (tmp_path / "logs" / "worker-0.log").read_text()
    assert code == 137, log
    for words in ("caught 71 ('worker:1',)", "caught again", "finally"):
        assert words in log, log
    assert "worker 1 failed first: exit code 137: ended by SIGKILL" in capfd.readouterr().err
