"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import replicax as rx

def worker(text):
    print(text)
    return rx.__version__

def test_fixture(cluster):
    assert cluster.run(worker, workers=2, text="hello") == [rx.__version__] * 2

@rx.testing.distributed(workers=1)
def test_decorated(tmp_path):
    print(tmp_path.is_dir())
"""


@pytest.mark.multiprocess
def test_fixture_and_option(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(TESTS)
    done = _pytest(tmp_path, "--replicax-logs", "logs", "test_it.py")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    logs = {path.parent.name.split("-")[0]: path.read_text() for path in (tmp_path / "logs").glob("*/worker-0.log")}
    assert "hello" in logs["worker"]
    assert "True" in logs["test_decorated"]


def test_loading_the_plugin_does_not_load_jax(tmp_path: Path):
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test():\n    assert not {'jax', 'replicax'} & {*sys.modules}\n"
    )
    done = _pytest(tmp_path, "test_it.py")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_replicax", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
