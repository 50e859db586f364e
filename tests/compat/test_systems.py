"""Systems that cannot run a job are told from those that can, and nothing is started there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from replicax.compat.systems import check_system, why_no_jobs
from replicax.errors import LaunchError
from replicax.estimator.client import Beside
from replicax.job.processes.reaper import Guard
from replicax.ray_cluster.nodes import Node


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process groups are missing, and starting a process is an error."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.delattr(os, "killpg")
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(subprocess, "Popen", start)


def test_this_system_can():
    assert why_no_jobs() == ""
    check_system()


@pytest.mark.usefixtures("windows")
@pytest.mark.parametrize(
    "start", [check_system, Guard, lambda: Beside(b""), lambda: Node("node", [], "127.0.0.1", {}, 1.0)]
)
def test_another_is_refused_before_anything_is_started(start):
    with pytest.raises(LaunchError, match=r"\(win32\) has no process groups.*or use Linux, macOS or WSL 2"):
        start()
