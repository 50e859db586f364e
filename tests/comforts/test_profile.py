"""`replicax profile`, used as in its page."""

import gzip
import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app
from replicax.errors import ExitCode

SCRIPT = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import sys
import numpy as np
import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = rx.Variable(np.ones((64, 64), np.float32))

@rx.function
def step(x):
    def replica(x):
        gradient = rx.get_replica_context().all_reduce("sum", (x @ w.value).T @ x)
        w.assign_sub(1e-6 * gradient)
    strategy.run(replica, args=(x,))

for batch in strategy.distribute_dataset([np.ones((8, 64), np.float32)] * int(sys.argv[1])):
    step(batch)
"""


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_each_worker_has_a_trace_of_the_steps_and_a_table(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "replicax", "profile", "--workers", "2", "--steps", "3:5", "--out", "traces"]
    environment = {**os.environ, "COLUMNS": "120", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [*command, str(script), "8"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted((tmp_path / "traces").rglob("perfetto_trace.json.gz"))
    assert [path.relative_to(tmp_path / "traces").parts[0] for path in found] == ["worker-0", "worker-1"]
    for index, path in enumerate(found):
        assert f"worker-{index}: steps 3 to 5" in done.stdout
        assert f"worker-{index}'s input: 8 steps in" in done.stdout
        with gzip.open(path, "rt") as file:
            events = json.load(file)["traceEvents"]
        runs = {event["args"]["run_id"] for event in events if "hlo_op" in (event.get("args") or {})}
        assert len(runs) == 3  # three steps, each of them one run of the program
    assert "jit_step" in done.stdout
    assert "%" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no.py"], "There is no file 'no.py'"),
        (["--steps", "5:3", __file__], "--steps is FIRST:LAST"),
        (["--steps", "0", __file__], "--steps is FIRST:LAST"),
        (["--steps", "x", __file__], "--steps is FIRST:LAST"),
        (["--out", os.path.dirname(__file__), __file__], "is not empty"),
    ],
)
def test_mistakes_are_told_before_anything_starts(arguments, words):
    found = CliRunner().invoke(app, ["profile", *arguments])
    assert found.exit_code == ExitCode.USAGE
    assert words in found.output
