"""An island that is killed is left out, and its successor joins, in real processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.islands import killed

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
ROOT = Path(__file__).parents[2]


@pytest.mark.nightly
def test_a_killed_island_joins_again_while_the_others_train_on(tmp_path):
    command = [sys.executable, "-m", "replicax", "run", "--workers", "3", "--islands", "--restarts", "1"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [*command, killed.__file__, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    results = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(3)]
    assert [result["life"] for result in results] == ["0", "1", "0"]
    for survivor in (results[0], results[2]):
        assert survivor["steps"] == list(range(1, killed.STEPS + 1)), "it has made each step once"
    joined = results[1]["steps"]
    assert 10 < joined[0] < killed.STEPS, "it went on from the others' steps"
    assert results[0]["values"] == results[1]["values"] == results[2]["values"]
