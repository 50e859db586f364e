"""The ledger of jobs: what the launcher and the processes write beside the logs."""

from __future__ import annotations

import time

import pytest

import replicax as rx


def test_each_worker_has_all_of_the_jobs_time(run):
    begin = time.monotonic()
    done = run("import decimal\ntime.sleep(0.3)\nassert 'REPLICAX_LEDGER' not in os.environ")
    wall = time.monotonic() - begin
    found = rx.ledger.read(done.logs)
    assert [worker.name for worker in found.workers] == ["worker 0", "worker 1"]
    for worker in found.workers:
        assert sum(worker.seconds.values()) == pytest.approx(found.wall, rel=1e-3)
        assert worker.seconds["callbacks and user code"] >= 0.25
    assert found.wall <= wall


def test_a_worker_that_is_killed_loses_a_second_at_most_and_is_started_again(run):
    done = run("time.sleep(1.5)\nif attempt == 0:\n    os.kill(os.getpid(), signal.SIGKILL)", workers=1, restarts=1)
    found = rx.ledger.read(done.logs)
    (worker,) = found.workers
    assert (found.attempts, done.code) == (2, 0)
    assert worker.seconds["restart"] > 0
    assert sum(worker.seconds.values()) == pytest.approx(found.wall, rel=1e-3)
    lines = (done.logs / "ledger" / "worker-0.jsonl").read_text().splitlines()
    assert sum('"begin"' in line for line in lines) == 2
    first = lines[: next(i for i, line in enumerate(lines) if i and '"begin"' in line)]
    assert len(first) > 1  # It has written before it was killed.


def test_a_job_that_keeps_none(run):
    done = run("assert 'replicax.runtime.clock' not in sys.modules", environment={"REPLICAX_LEDGER": "0"})
    assert done.code == 0
    assert not (done.logs / "ledger").exists()
