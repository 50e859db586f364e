"""Runs small scripts as clusters, in this process or under a launcher of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from replicax.job.launching import Options, Terminal, launch
from replicax.job.supervision.state import PATIENCE

# What the scripts of these tests begin with: cheap imports only, so that a process starts in no time.
PREAMBLE = """
import json, os, signal, subprocess, sys, time
role = json.loads(os.environ.get("TF_CONFIG", '{"task": {"type": "chief", "index": 0}}'))
kind, index = role["task"]["type"], role["task"]["index"]
attempt = int(os.environ["REPLICAX_ATTEMPT"])
def sleep():
    time.sleep(100)
"""
LIMIT_S = 120.0  # to start an interpreter, or a cluster of Ray, on a machine that does other work


class Done(NamedTuple):
    """How a job ended."""

    code: int
    out: str
    err: str
    logs: Path

    def log(self, task: str) -> str:
        return (self.logs / f"{task}.log").read_text()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a script; returns its path."""

    def write(body: str) -> Path:
        path = tmp_path / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(body))
        return path

    return write


@pytest.fixture
def run(script: Callable[[str], Path], tmp_path: Path) -> Callable[..., Done]:
    """Runs a script with the launcher in this process: `run(body, workers=2)`."""

    def launched(body: str, *arguments: str, **options: Any) -> Done:
        out, err = io.StringIO(), io.StringIO()
        logs = options.pop("log_dir", tmp_path / "logs")
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), **options.pop("environment", {})}
        patience = options.pop("patience", PATIENCE)
        path = script(body)
        wanted = Options(str(path), arguments, **{"workers": 2, "grace": 1.0, "log_dir": logs, **options})
        code = launch(wanted, Terminal(out, err), environment, patience)
        return Done(code, out.getvalue(), err.getvalue(), logs)

    return launched


class Launcher:
    """A launcher in a process of its own, whose workers write their process numbers to files."""

    def __init__(self, process: subprocess.Popen[str], folder: Path):
        self.process, self.folder = process, folder

    def pids(self, count: int) -> list[int]:
        """Waits until `count` processes have written their numbers, and returns those."""
        wait_for(lambda: len(list(self.folder.glob("pid-*"))) >= count)
        return [int(path.name.removeprefix("pid-")) for path in self.folder.glob("pid-*")]

    def end(self, number: int) -> tuple[int, str, str]:
        """Sends a signal; returns exit code and output."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, out, err


# Tells the test that this process runs.
READY = """
def ready():
    open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"pid-{os.getpid()}"), "w").close()
"""


@pytest.fixture
def launcher(script: Callable[[str], Path], tmp_path: Path) -> Iterator[Callable[..., Launcher]]:
    """Starts `replicax run` as a person does: `launcher(body, "--workers", "2")`."""
    started = []

    def start(body: str, *options: str) -> Launcher:
        path = script(READY + textwrap.dedent(body))
        command = [sys.executable, "-m", "replicax", "run", "--log-dir", str(tmp_path / "logs"), *options, str(path)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return Launcher(process, tmp_path)

    yield start
    for process in started:
        process.kill()  # Nothing, if it has been waited for: its number may be that of a thread of ours by now.
        process.communicate(timeout=LIMIT_S)


def wait_for(condition: Callable[[], object]) -> None:
    """Returns when the condition holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that nobody has asked about yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"
