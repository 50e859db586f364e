"""The membership that tests see is what the launcher's log says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from replicax.testing.elastic_job import Membership, Run


def start(worker: int, incarnation: int, pid: int) -> dict[str, Any]:
    return {"event": "start", "worker": worker, "life": incarnation, "pid": pid, "time": 1.0}


def end(worker: int, incarnation: int, pid: int) -> dict[str, Any]:
    return {**start(worker, incarnation, pid), "event": "end", "code": 137, "reason": "SIGKILL"}


def world(number: int, *members: int) -> dict[str, Any]:
    return {"event": "world", "number": number, "members": list(members), "time": float(number), "why": "start"}


def test_nothing_is_known_before_the_log_exists(tmp_path: Path):
    assert Membership.read(tmp_path) == Membership({}, {}, (), ())
    assert Membership.read(tmp_path).present == ()


def test_a_replacement_takes_the_place_of_the_run_before():
    found = Membership.of([start(0, 0, 10), start(1, 0, 11), end(1, 0, 11), start(1, 1, 12)])
    assert found.running == {0: Run(0, 0, 10), 1: Run(1, 1, 12)}
    assert found.ended == {Run(1, 0, 11): 137}
    assert [run.pid for run in found.runs] == [10, 11, 12]


def test_the_end_of_an_old_run_that_is_told_late_ends_no_new_one():
    found = Membership.of([start(1, 0, 11), start(1, 1, 12), end(1, 0, 11)])
    assert found.running == {1: Run(1, 1, 12)}


def test_the_last_world_is_the_present_one():
    found = Membership.of([world(1, 0, 1, 2), world(2, 0, 2)])
    assert found.present == (0, 2)
    assert [each.number for each in found.worlds] == [1, 2]


def test_a_line_that_is_being_written_is_not_read(tmp_path: Path):
    whole, half = json.dumps(world(1, 0, 1)), json.dumps(world(2, 0))[:-4]
    (tmp_path / "members.jsonl").write_text(f"{whole}\n{half}")
    assert Membership.read(tmp_path).present == (0, 1)
