"""The short form of `tests/soak/islands.py`."""

import subprocess
import sys
from pathlib import Path

import pytest

ISLANDS = Path(__file__).resolve().parent.parent / "soak" / "islands.py"
pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def test_islands_that_are_killed_and_stopped_come_back():
    done = subprocess.run(
        [sys.executable, ISLANDS, "--kills", "3", "--seed", "0"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("RESULT"))
    assert (found["islands_lost_rounds"], found["hangs"], found["processes_left"]) == ("0", "0", "0")
    assert int(found["islands_kills"]) >= 3
