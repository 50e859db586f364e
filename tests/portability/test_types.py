"""mypy sees each use of a name that Windows or macOS lacks, in whatever function: none but where jobs are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
#: What `replicax.compat.systems.check_system` keeps from being reached there.
OF_JOBS = ("remote", "launch", "ray_cluster", "testing", "membership", "notebook", "profiling")
#: Guarded by a look whether the name is there; mypy forgets it in a function that is called.
GUARDED = {"cluster/outages.py"}


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize(("system", "lacks"), [("win32", OF_JOBS), ("darwin", ())])
def test_names_of_linux_are_used_for_jobs_only(system: str, lacks: tuple[str, ...], tmp_path: Path):
    command = [sys.executable, "-m", "mypy", "--platform", system, "--cache-dir", str(tmp_path), "--no-error-summary"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = re.findall(r"^replicax/(\S+?):\d+: error: (.*)$", done.stdout, re.MULTILINE)
    assert [each for each in found if each[0].split("/")[0] not in lacks and each[0] not in GUARDED] == []
