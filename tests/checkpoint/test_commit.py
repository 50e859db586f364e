"""The short form of `tests/soak/commit.py`: kills inside a save that replaces another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import commit

SOAK = Path(__file__).resolve().parent.parent / "soak" / "commit.py"


@pytest.mark.slow
def test_a_kill_before_a_call_that_changes_files_leaves_a_whole_checkpoint():
    if reason := commit.why_not():
        pytest.skip(reason)
    ran = subprocess.run(
        [sys.executable, str(SOAK), "--quick"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    figures = dict(line.split()[1:] for line in ran.stdout.splitlines() if line.startswith("RESULT"))
    assert int(figures["commit_points"]) >= 5
    assert figures["commit_lost"] == figures["commit_half_read"] == "0"
