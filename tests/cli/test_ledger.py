"""`replicax ledger`."""

import itertools
import json

from typer.testing import CliRunner

from replicax.cli.app import app
from tests.tools.ledger.written import job, lines_of, write


def test_it_prints_a_table_and_what_has_cost_most_and_writes_a_picture_and_a_trace(tmp_path):
    slow = {"computing": 0.6, "waiting for input": 0.4}
    files = {
        f"worker-{i}": lines_of(i, 1.0, [seconds] * 20, n={"train": 10})
        for i, seconds in enumerate(({"computing": 1.0}, slow))
    }
    write(tmp_path, job(2, 22.0), files)
    picture, trace = tmp_path / "a.png", tmp_path / "a.json"
    done = CliRunner().invoke(app, ["ledger", str(tmp_path), "--png", str(picture), "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert "22.0 s, of which the workers computed 54.5% (goodput)." in done.output
    assert "The others have waited for worker 1." in done.output
    assert "worker 1: waiting for input, 7.6 s" in done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    for worker in range(2):
        own = [event for event in events if event["pid"] == worker]
        assert sum(event["dur"] for event in own) == 22_000_000
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in itertools.pairwise(own))


def test_without_a_ledger(tmp_path):
    done = CliRunner().invoke(app, ["ledger", str(tmp_path)])
    assert done.exit_code == 2
    assert "There is no ledger in" in done.output
