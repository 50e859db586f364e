"""Jobs under `replicax run` that something happens to: they end soon, with the right code, and say why in few lines."""

from __future__ import annotations

import dataclasses
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

from replicax.errors import ExitCode

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
JOB = Path(__file__).with_name("faults.py")
LONGEST_S = 120.0
LONGEST_LINES = 60


@dataclasses.dataclass
class Launched:
    """A launcher with its job."""

    process: subprocess.Popen
    folder: Path

    def pid(self, worker: int) -> int:
        """Waits until a worker has come to its fault; returns its process number."""
        there, deadline = self.folder / f"worker-{worker}.there", time.monotonic() + LONGEST_S
        while not (there.exists() and there.read_text()):
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, self.output()
            time.sleep(0.05)
        return json.loads(there.read_text())

    def end(self) -> tuple[int, str]:
        """Waits for the end of the job; returns the launcher's exit code and what it has printed."""
        try:
            return self.process.wait(LONGEST_S), self.output()
        except subprocess.TimeoutExpired:
            raise AssertionError(f"The job hangs:\n{self.output()}") from None

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    started = []

    def start(fault: str, *options: str, workers: int = 2, stall: float = 3.0, slow: float = 60.0) -> Launched:
        environment = {**os.environ, "REPLICAX_STALL_TIMEOUT": str(stall), "REPLICAX_SLOW_TIMEOUT": str(slow)}
        environment |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "KERAS_BACKEND": "jax"}
        command = [sys.executable, "-m", "replicax", "run", "--workers", str(workers), *options]
        command += ["--log-dir", str(tmp_path / "logs"), str(JOB), fault, str(tmp_path)]
        with open(tmp_path / "output.txt", "w") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        started.append(process)
        return Launched(process, tmp_path)

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.nightly
def test_sigterm_ends_a_job_without_a_handler(launch: Callable[..., Launched]):
    job = launch("sigterm", "--grace", "60", stall=30.0)
    job.pid(0), job.pid(1)
    begin = time.monotonic()
    job.process.send_signal(signal.SIGTERM)
    code, output = job.end()
    assert code == 128 + signal.SIGTERM, output
    assert time.monotonic() - begin < 20, output


def test_sigterm_lets_a_handler_save(launch: Callable[..., Launched]):
    job = launch("preempted", "--grace", "60", stall=30.0)
    job.pid(0), job.pid(1)
    job.process.send_signal(signal.SIGTERM)
    code, output = job.end()
    assert code == ExitCode.RESUME, output
    assert list((job.folder / "saved").iterdir())


@pytest.mark.nightly
def test_who_is_stopped_on_the_way_out_is_named(launch: Callable[..., Launched]):
    job = launch("at_exit", stall=6.0)
    os.kill(job.pid(1), signal.SIGSTOP)
    code, output = job.end()
    assert code == ExitCode.STALLED, output
    assert "worker 1 failed first: exit code 70" in output
    assert "worker:1 (127.0.0.1:" in output
    assert "does not answer (stopped" in output
    assert len(output.splitlines()) <= LONGEST_LINES, output


@pytest.mark.nightly
def test_who_is_told_to_go_on_the_way_out_goes(launch: Callable[..., Launched]):
    job = launch("at_exit", stall=60.0)
    os.kill(job.pid(1), signal.SIGTERM)
    code, output = job.end()
    assert code == 128 + signal.SIGTERM, output


def test_who_does_not_come_to_the_end_is_named(launch: Callable[..., Launched]):
    job = launch("left", slow=15.0)
    code, output = job.end()
    assert code == ExitCode.STALLED, output
    assert "worker 1 failed first" in output
    assert "others have been done for more than 15 s and wait to leave with it" in output


@pytest.mark.nightly
def test_a_worker_that_fails_among_three_says_so_in_few_lines(launch: Callable[..., Launched]):
    code, output = launch("fails", workers=3, stall=30.0).end()
    assert code == ExitCode.FAILED, output
    assert "worker 1 failed first: exit code 1" in output
    assert output.endswith("RuntimeError: the user's own\n")
    assert len(output.splitlines()) <= LONGEST_LINES, output


def test_different_programs_are_the_scripts_fault_and_not_tried_again(launch: Callable[..., Launched]):
    code, output = launch("differs", "--restarts", "3", stall=30.0).end()
    assert code == ExitCode.DIVERGED, output
    assert "The workers' programs differ" in output
    assert "restart 1" not in output
    assert len(output.splitlines()) <= LONGEST_LINES, output


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("first_chief_reduces", "worker:1 is about to run|worker:0 is about to run 'reduction'"),
        ("chief_saves_while_others_train", "Only worker:0 called 'Writing the checkpoint .*'; call it on every worker"),
        ("first_chief_saves_weights", r"and is ended. Only worker:0 called 'save_weights'; call it on every worker\. "),
    ],
)
def test_what_the_chief_calls_alone_while_others_go_on_is_named(fault: str, said: str, launch: Callable[..., Launched]):
    code, output = launch(fault, stall=60.0).end()  # Gloo's own limit is 30 s.
    assert code == ExitCode.DIVERGED, output
    assert re.search(said, output), output
    assert len(output.splitlines()) <= LONGEST_LINES, output


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("fault", "called"),
    [("chief_evaluates", "evaluate"), ("chief_saves_as_others_end", "Saving step 1 to .*: what to write is known")],
)
def test_what_the_chief_calls_alone_when_others_have_ended_is_noticed(
    fault: str, called: str, launch: Callable[..., Launched]
):
    job = launch(fault, stall=30.0)
    job.pid(0)
    begin = time.monotonic()
    code, output = job.end()
    assert time.monotonic() - begin < 25, output
    assert re.search(f"worker:0 called '{called}'; call it on every worker", output), output
    assert code == ExitCode.PEER_LOST, output
    assert "worker:1 (127.0.0.1:" in output
    assert "has ended, and others wait for it" in output
    assert len(output.splitlines()) <= LONGEST_LINES, output


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "fault", ["chief_reduces", "chief_makes_a_variable", "chief_saves", "chief_saves_in_the_background"]
)
def test_what_only_the_chief_calls_is_noticed(launch: Callable[..., Launched], fault: str):
    job = launch(fault, stall=5.0)
    job.pid(0)
    begin = time.monotonic()
    code, output = job.end()
    assert time.monotonic() - begin < 60, output
    assert code == ExitCode.STALLED, output
    assert "replicax: the job stands still and is ended." in output
    assert len(output.splitlines()) <= LONGEST_LINES, output
