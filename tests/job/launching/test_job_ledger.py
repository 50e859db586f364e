"""The ledger of jobs: what the launcher and the processes write beside the logs."""

from __future__ import annotations

import json
import time

import pytest

import replicax as rx
from replicax.job.processes.job_ledger import LedgerStatus
from tests.tools.ledger.written import job, lines_of, write


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


def test_the_status_adds_up_what_all_workers_have_written_since(tmp_path):
    write(tmp_path, job(2, 9.0)[:1], {"worker-0": lines_of(0, 1.0, [{"stall": 1.0}] * 9)})
    status = LedgerStatus(tmp_path)
    assert status.text() == ""  # A job before.
    for index, seconds in enumerate(({"computing": 0.7, "compile": 0.3}, {"computing": 0.97, "meeting": 0.03})):
        _, *lines = lines_of(index, 1.0, [seconds] * 9)
        with (tmp_path / "ledger" / f"worker-{index}.jsonl").open("a") as file:
            file.write("".join(f"{json.dumps(line)}\n" for line in lines) + '{"at": 10')
    assert status.text() == "84% computing, 15% compile"
    assert status.text() == "84% computing, 15% compile"


def test_a_job_that_keeps_none(run):
    done = run("assert 'replicax.runtime.clock' not in sys.modules", environment={"REPLICAX_LEDGER": "0"})
    assert done.code == 0
    assert not (done.logs / "ledger").exists()
