"""replicax on Windows and macOS: all modules are imported, one process trains, saves and loads, and `doctor` works.

These systems are not here. A process is made to lack what they lack, by the stubs of Python's library that mypy has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.portability.typeshed import missing

pytestmark = pytest.mark.nightly

SECONDS = 240


def told(system: str) -> dict[str, Any]:
    """Returns what `program.py` prints on a pretended system."""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-X", "warn_default_encoding", "-m", "tests.portability.program", system]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def findings(told: dict[str, Any]) -> dict[str, Any]:
    return {finding["name"]: finding for finding in json.loads(told["doctor"])["findings"]}


@pytest.fixture(scope="module")
def windows() -> dict[str, Any]:
    return told("win32")


@pytest.fixture(scope="module")
def macos() -> dict[str, Any]:
    return told("darwin")


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("system", ["windows", "macos"])
def test_all_modules_are_imported_and_one_process_trains(system: str, request: pytest.FixtureRequest):
    told = request.getfixturevalue(system)
    assert told["modules"] > 700
    assert told["fit"][-1] < told["fit"][0] / 10
    assert told["loop"][-1] < told["loop"][0] / 2
    assert told["restored"] == told["loaded"] == [[0, 1, 2], [3, 4, 5]]
    assert told["exported"] == [[3, 5, 7]]
    code, output, has_picture = told["demo"]
    assert code == 0, output
    assert "The losses agree" in output
    assert has_picture


@pytest.mark.slow
@pytest.mark.multiprocess
def test_on_windows_a_job_is_refused_and_the_message_says_what_to_do(windows: dict[str, Any]):
    code, output = windows["run"]
    assert code == 2
    assert "no process groups" in output
    assert "use Linux, macOS or WSL 2" in output
    found = findings(windows)
    assert found["all-reduce"]["status"] == "warn"
    assert "WSL 2" in found["all-reduce"]["cure"]
    assert "fail" not in {finding["status"] for finding in found.values()}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_on_macos_a_job_runs(macos: dict[str, Any]):
    assert macos["run"] == [0, "[worker 0] it ran\n"]
    assert findings(macos)["all-reduce"]["status"] == "ok"


def test_the_command_prints_where_the_encoding_lacks_a_character():
    """As in a pipe on Windows, where the encoding is that of the country."""
    code = "import sys; from replicax import cli; cli.print_anywhere(); print('\u2713 equal')"
    environment = {**os.environ, "PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, env=environment, check=False)
    assert (done.returncode, done.stdout.decode("cp1252").strip()) == (0, "? equal"), done.stderr


@pytest.mark.parametrize(
    ("module", "name", "systems"),
    [
        ("os", "fork", {"win32"}),
        ("os", "waitid", {"win32", "darwin"}),
        ("os", "kill", set()),
        ("signal", "SIGKILL", {"win32"}),
        ("signal", "SIGRTMIN", {"win32", "darwin"}),
        ("signal", "SIGTERM", set()),
        ("socket", "AF_UNIX", {"win32"}),
        ("socket", "AF_INET", set()),
        ("faulthandler", "register", {"win32"}),
        ("termios", "tcgetattr", {"win32"}),
        ("resource", "getrusage", {"win32"}),
    ],
)
def test_what_a_system_lacks_is_known(module: str, name: str, systems: set[str]):
    assert {system for system in ("win32", "darwin") if name in missing(module, system)} == systems
