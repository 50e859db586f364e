"""Shared by the tests of clusters: what a process leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from replicax.ray_cluster import node_reaper

LIMIT_S = 120.0
OF_CLUSTERS = ("RAY_", "REPLICAX_", "TF_CONFIG", "JAX_COORDINATOR", "JAX_NUM_PROCESSES")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that knows of no cluster and no token."""
    for name in [*os.environ]:
        if name.startswith(OF_CLUSTERS):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    return monkeypatch


def wait_for(condition: Callable[[], object], seconds: float = LIMIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def assert_nothing_left(folder: str) -> None:
    """Waits until no process of a node is left, and its folder is gone."""
    wait_for(lambda: not node_reaper.marked(folder) and not Path(folder).exists(), 30)


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process that knows of no cluster but what it is told."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OF_CLUSTERS)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env={**clean, **environment}, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def heads(folder: str) -> list[int]:
    """Returns the processes that hold a cluster together, among those of a node."""
    return [pid for pid in node_reaper.marked(folder) if "gcs_server" in _program(pid)]


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    except OSError:
        return ""
