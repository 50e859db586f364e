"""The short form of `tests/soak/start.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

START = Path(__file__).resolve().parent.parent / "soak" / "start.py"


@pytest.mark.multiprocess
@pytest.mark.slow
def test_a_start_with_large_variables_on_a_busy_machine_is_no_alarm():
    command = [sys.executable, str(START), "--starts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("RESULT false_alarms 0\n")
