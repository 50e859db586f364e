"""Restarts of a job, and jobs that cannot be started."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from replicax.errors import LaunchError
from tests.job.launching.conftest import wait_for
from tests.job.launching.test_job import Run

pytestmark = pytest.mark.multiprocess


# Restarts.


def test_a_restart_starts_all_again_and_tells_them(run: Run):
    done = run(
        """
        print("attempt", attempt, role["cluster"]["worker"][0], os.environ["REPLICAX_TOKEN"], flush=True)
        came = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"came-{attempt}")
        if index == 0:
            open(came, "w").close()
        elif attempt < 2:
            while not os.path.exists(came):
                time.sleep(0.01)
            raise RuntimeError(f"number {attempt}")
        time.sleep(0.2 if attempt == 2 else 100)
        """,
        restarts=3,
    )
    assert done.code == 0
    assert (
        "[replicax] worker 1 ended with exit code 1: an error in the script (RuntimeError: number 0). restart 1 of 3."
        in done.err
    )
    assert "failed first" not in done.err
    seen = re.findall(r"^attempt (\d) \S+ (\w{32})$", done.log("worker-0"), re.MULTILINE)
    assert [attempt for attempt, _ in seen] == ["0", "1", "2"]
    assert len({token for _, token in seen}) == 1
    assert "=== attempt 2 ===" in done.log("worker-0")


def test_the_last_failure_is_shown_when_no_restart_is_left(run: Run):
    done = run("raise RuntimeError(f'number {attempt}')", workers=1, restarts=2)
    assert done.code == 1
    assert done.err.endswith("RuntimeError: number 2\n")
    assert done.err.count("failed first") == 1


def test_wrong_usage_is_not_tried_again(run: Run):
    done = run("sys.exit(2)", restarts=3)
    assert done.code == 2
    assert "restart" not in done.err


def test_preempted_workers_are_resumed(run: Run):
    done = run("sys.exit(75 if attempt < 3 else 0)", restarts=3)
    assert done.code == 0
    assert done.err.count("saved, to be resumed. it asks to be resumed") == 1
    assert run("sys.exit(75)", restarts=0).code == 75


def test_who_saves_is_not_disturbed_by_who_has_saved(run: Run):
    done = run("time.sleep(index)\nprint('saved')\nsys.exit(75)", grace=0.0)
    assert done.code == 75
    assert done.out == "[worker 0] saved\n[worker 1] saved\n"


def test_the_job_goes_on_without_a_worker_that_keeps_failing(run: Run):
    done = run(
        """
        print("workers", len(role["cluster"]["worker"]))
        if index == 2:
            os._exit(5)
        time.sleep(0.2 if len(role["cluster"]["worker"]) == 2 else 100)
        """,
        workers=3,
        min_workers=2,
        restarts=3,
    )
    assert done.code == 0
    *before, last = re.findall(r"workers (\d)", done.log("worker-0"))
    assert (set(before), last) in ((set(), "2"), ({"3"}, "2"))  # It may end before it says anything.
    assert len(before) <= 2
    assert "worker 2 is given up, 2 worker(s) go on." in done.err


def test_a_job_goes_on_while_one_island_starts_again(run: Run):
    done = run(
        """
        life = os.environ["REPLICAX_LIFE"]
        if index == 1 and life == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.5)
        print("ends", index, life, os.environ["REPLICAX_ATTEMPT"])
        """,
        workers=2,
        islands=True,
        restarts=1,
    )
    assert done.code == 0, done.out + done.err
    assert "ends 0 0 0" in done.out
    assert "ends 1 1 0" in done.out
    assert (
        "worker 1 ended with exit code 137: ended by SIGKILL. It starts again (restart 1 of 1)" in done.out + done.err
    )


# What cannot be started.


def test_a_log_that_cannot_be_written_ends_all(run: Run, tmp_path: Path):
    (tmp_path / "logs" / "worker-1.log").mkdir(parents=True)
    with pytest.raises(LaunchError, match=r"worker-1\.log.*Choose another --log-dir"):
        run("sleep()")


def test_a_process_that_cannot_be_started(run: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("replicax.job.processes.processes.sys.executable", "/nowhere/python")
    monkeypatch.setattr("replicax.job.launching.local_job.Guard", NoGuard)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LaunchError, match=r"The process of worker 0 cannot be started: .*/nowhere/python"):
        run("pass")
    assert len(os.listdir("/proc/self/fd")) <= open_files


class NoGuard:
    def watch(self, _: object) -> None: ...

    def forget(self, _: object) -> None: ...

    def close(self) -> None: ...


def test_no_file_stays_open(run: Run):
    run("pass")
    open_files = len(os.listdir("/proc/self/fd"))
    run("pass", workers=3)
    wait_for(lambda: len(os.listdir("/proc/self/fd")) <= open_files)


def test_ending_a_job_takes_no_longer_than_it_must(run: Run):
    started = time.monotonic()
    run("os._exit(1) if index else sleep()", grace=60.0)
    assert time.monotonic() - started < 10
