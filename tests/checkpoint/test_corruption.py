"""The short form of `tests/soak/corruption.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CORRUPTION = Path(__file__).resolve().parent.parent / "soak" / "corruption.py"


def test_no_damage_is_restored_in_silence():
    command = [sys.executable, str(CORRUPTION), "--damages", "60", "--seed", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "RESULT silent_corruptions 0\nRESULT raw_errors 0" in done.stdout
