"""The short form of `tests/soak/chaos.py`: one fault, then two at once."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

CHAOS = Path(__file__).resolve().parent.parent / "soak" / "chaos.py"


@pytest.mark.multiprocess
@pytest.mark.slow
@pytest.mark.nightly  # Faults at random; other tests show each kind of them.
def test_a_job_survives_faults_and_ends_as_if_nothing_had_been():
    command = [sys.executable, str(CHAOS), "--faults", "3", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    results = dict(re.findall(r"(?m)^RESULT (\w+) (\S+)$", done.stdout))
    assert done.returncode == 0, done.stdout + done.stderr
    assert results["faults_survived"] == "3"
    assert (results["hangs"], results["processes_left"]) == ("0", "0")
    assert float(results["final_parameter_difference"]) == 0.0
