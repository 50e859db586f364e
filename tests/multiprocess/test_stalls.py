"""No silent hangs: every way to stand still ends soon, with a report that names the right worker; slowness does not."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from replicax.errors import ExitCode
from tests.multiprocess.stalls import Job, job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
LONGEST_S = 10.0


def check(running: Job, since: float, *said: str, codes: tuple[int, ...] = (ExitCode.STALLED,)) -> None:
    """Worker 0 ends in time with one of the codes, and its report, also on disk, says what it should."""
    code, ended = running.end(0)
    text = running.log(0)
    assert code in codes, text
    took = ended - since
    print(f"detected and ended after {took:.1f} s")
    assert took < LONGEST_S, text
    report = (running.folder / "stall-worker-0.txt").read_text()
    assert report.splitlines()[1] in text  # the finding; the whole report with the stacks of all is on disk
    assert f"The Python stacks of all: {running.folder / 'stall-worker-0.txt'}" in text
    for words in said:
        assert words in report, report
    assert "Python stacks of worker:0" in report


def fault_time(running: Job, worker: int = 1) -> float:
    return float(running.wait_for(worker, r"fault at ([\d.]+)")[1])


@pytest.mark.nightly
def test_a_stopped_worker(tmp_path: Path):
    with job(tmp_path, steps=1000) as running:
        running.wait_for(1, "step 5")
        running.processes[1].send_signal(signal.SIGSTOP)
        check(running, time.monotonic(), "worker:1 (127.0.0.1:", "does not answer", "last completed step")
        running.processes[1].send_signal(signal.SIGCONT)
        code, _ = running.end(1, 20)
        assert code != 0


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["callback", "input"])
def test_a_worker_that_does_not_come(tmp_path: Path, fault: str):
    with job(tmp_path, fault) as running:
        since = fault_time(running)
        stacks = ("Python stacks of worker:1", "in strike", f"phase '{fault}'")
        check(running, since, "worker:1 (127.0.0.1:", "does not come to where", *stacks)
        code, _ = running.end(1, 5)
        assert code == ExitCode.STALLED, running.log(1)
        assert (tmp_path / "stall-worker-0.txt").read_text() == (tmp_path / "stall-worker-1.txt").read_text()


@pytest.mark.nightly
def test_a_sharded_variable_that_one_worker_reads_alone(tmp_path: Path):
    with job(tmp_path, "read") as running:
        since = fault_time(running)
        said = "Only worker:1 called \"the value of 'sequential/dense/kernel', of which other workers hold shards: all"
        check(running, since, said, codes=(ExitCode.DIVERGED,))
        assert running.end(1, 5)[0] == ExitCode.DIVERGED


@pytest.mark.daily(1)
@pytest.mark.parametrize(("killed", "fault"), [(1, ""), (0, ""), (1, "sharded")])
def test_a_killed_worker(tmp_path: Path, killed: int, fault: str):
    with job(tmp_path, fault, steps=1000) as running:
        running.wait_for(1, "step 5")
        since = time.monotonic()
        running.processes[killed].kill()
        other = 1 - killed
        code, ended = running.end(other)
        print(f"ended after {ended - since:.1f} s with {code}")
        assert ended - since < LONGEST_S
        if killed == 0 and code == -signal.SIGABRT:  # JAX was faster: it ends all when its service is gone.
            assert "Terminating process because the JAX distributed service" in running.log(other)
            return
        assert code == ExitCode.PEER_LOST, running.log(other)
        assert f"worker:{killed} (127.0.0.1:" in running.log(other)
        assert "is dead" in running.log(other)


@pytest.mark.nightly
def test_different_programs(tmp_path: Path):
    with job(tmp_path, "program") as running:
        for worker in (0, 1):
            code, _ = running.end(worker)
            text = running.log(worker)
            assert code == ExitCode.DIVERGED, text
            assert f"worker:{worker} is about to run 'train_step' (fingerprint" in text
            assert f"worker:{1 - worker} 'train_step' (" in text


@pytest.mark.nightly
def test_known_programs_in_another_order(tmp_path: Path):
    with job(tmp_path, "swap", stall_timeout=60.0) as running:
        for worker in (0, 1):
            code, _ = running.end(worker)
            text = running.log(worker)
            assert "known: 14.0, 1400.0 after 18 calls" in text, text
            assert code == ExitCode.DIVERGED, text
            assert "would compute wrong numbers" in text
            assert "as call number 19, worker:0 'add_a' (program 1) and worker:1 'add_b' (program " in text


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            "argument",
            ("have called 'add_scaled' (program ", "as call number 21, worker:0 scale=0.5 and worker:1 scale=1.5"),
        ),
        ("barrier", ("as call number 19, worker:0 'Writing the checkpoint ", "and worker:1 \"barrier 'data'\"")),
    ],
)
def test_other_arguments_and_other_waits_of_one_worker(tmp_path: Path, fault: str, said: tuple[str, ...]):
    with job(tmp_path, fault, stall_timeout=60.0) as running:
        for worker in (0, 1):
            code, _ = running.end(worker, 30)
            assert code == ExitCode.DIVERGED, running.log(worker)
            assert [words for words in said if words not in running.log(worker)] == []


@pytest.mark.nightly
def test_known_programs_in_the_same_order(tmp_path: Path):
    with job(tmp_path, "in order") as running:
        assert [running.end(worker)[0] for worker in (0, 1)] == [0, 0], running.log(0) + running.log(1)


def test_a_worker_that_fails(tmp_path: Path):
    with job(tmp_path, "error") as running:
        since = fault_time(running)
        check(running, since, "worker:1", "RuntimeError: the user's own", codes=(ExitCode.PEER_LOST,))
        code, _ = running.end(1, 5)
        assert code == ExitCode.FAILED


@pytest.mark.parametrize("fault", ["compile", "checkpoint", "first batch"])
@pytest.mark.nightly
def test_slow_is_not_stuck(tmp_path: Path, fault: str):
    with job(tmp_path, fault, seconds=8, stall_timeout=3) as running:
        for worker in (0, 1):
            code, _ = running.end(worker)
            assert code == 0, running.log(worker)
            assert "finished" in running.log(worker)


@pytest.mark.nightly
def test_a_callback_that_is_slow_but_not_too_slow(tmp_path: Path):
    with job(tmp_path, "callback", seconds=3, stall_timeout=6) as running:
        assert [running.end(worker)[0] for worker in (0, 1)] == [0, 0], running.log(0)


@pytest.mark.nightly
def test_slow_phases_have_a_limit_too(tmp_path: Path):
    with job(tmp_path, "checkpoint", stall_timeout=2, REPLICAX_SLOW_TIMEOUT="4") as running:
        since = fault_time(running)
        check(running, since, "worker:1", "phase 'checkpoint'", "takes longer than the 4 s")
