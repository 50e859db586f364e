"""What happens to the workers when something happens to the launcher."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from replicax.job.processes import reaper_main
from tests.job.launching.conftest import LIMIT_S, Launcher, is_alive, wait_for

pytestmark = pytest.mark.multiprocess
Launch = Callable[..., Launcher]

# Each worker has a child of its own, and listens at its port.
FAMILY = """
import socket
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"pid-{child.pid}"), "w").close()
server = socket.create_server(("127.0.0.1", int(role["cluster"]["worker"][index].split(":")[1])))
open(os.path.join(os.path.dirname(os.path.abspath(__file__)), f"port-{server.getsockname()[1]}"), "w").close()
ready()
sleep()
"""


def assert_all_gone(pids: list[int], folder: Path) -> None:
    wait_for(lambda: not any(map(is_alive, pids)))
    ports = [int(path.name.removeprefix("port-")) for path in folder.glob("port-*")]
    # Nobody is bound to them: neither a worker nor the launcher. Another test's connection may have one for a moment.
    wait_for(lambda: all(map(is_free, ports)))


def is_free(port: int) -> bool:
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind(("127.0.0.1", port))
            free.listen()
        except OSError:
            return False
        return True


def guard_of(launcher: int) -> int:
    """Returns the process that reads from a pipe of the launcher: the guard is nobody's child."""
    pipes = {os.readlink(path) for path in Path(f"/proc/{launcher}/fd").iterdir()}
    guards = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # It has just ended.
            command = (folder / "cmdline").read_bytes()
            if os.fsencode(reaper_main.__file__) in command and os.readlink(folder / "fd/0") in pipes:
                guards.append(int(folder.name))
    (guard,) = guards
    return guard


@pytest.mark.daily(2)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the parent-death signal of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_outlives_the_launcher(launcher: Launch, number: int):
    job = launcher(FAMILY, "--workers", "2", "--grace", "1")
    pids = job.pids(4)
    assert all(map(is_alive, pids))
    code, _, err = job.end(number)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert_all_gone(pids, job.folder)
    if number != signal.SIGKILL:
        name = signal.Signals(number).name
        assert f"[replicax] {name} is passed on to all tasks." in err
        assert err.endswith(f"[replicax] All tasks have ended; exit code {code}: ended by {name}.\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the parent-death signal of Linux")
@pytest.mark.nightly
def test_the_workers_die_with_the_launcher_even_if_the_guard_is_killed_too(launcher: Launch):
    job = launcher("ready()\nsleep()", "--workers", "2")
    pids = job.pids(2)
    guard = guard_of(job.process.pid)
    os.kill(guard, signal.SIGKILL)
    job.end(signal.SIGKILL)
    assert_all_gone([*pids, guard], job.folder)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for the guard in /proc")
@pytest.mark.nightly
def test_the_job_goes_on_if_the_guard_is_killed(launcher: Launch):
    body = "ready()\nwhile not os.path.exists(os.path.dirname(os.path.abspath(__file__)) + '/go'): time.sleep(0.02)"
    job = launcher(body, "--workers", "2")
    job.pids(2)
    os.kill(guard_of(job.process.pid), signal.SIGKILL)
    (job.folder / "go").touch()
    assert job.wait()[0] == 0


def test_preempted_workers_save_and_the_launcher_asks_to_be_resumed(launcher: Launch):
    job = launcher(
        """
        def save(*_):
            time.sleep(0.3 * index)
            print("saved")
            sys.exit(75)
        signal.signal(signal.SIGTERM, save)
        ready()
        sleep()
        """,
        "--workers",
        "2",
        "--restarts",
        "3",
        "--grace",
        "20",
    )
    job.pids(2)
    code, out, err = job.end(signal.SIGTERM)
    assert code == 75
    assert out == "[worker 0] saved\n[worker 1] saved\n"
    assert err.endswith("All tasks have ended; exit code 75: saved, to be resumed.\n")


def test_workers_that_take_the_signal_well_end_the_job_well(launcher: Launch):
    job = launcher("signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\nready()\nsleep()", "--workers", "2")
    job.pids(2)
    assert job.end(signal.SIGTERM)[0] == 0


def test_a_job_goes_on_at_a_signal_that_its_starter_ignores(script: Callable[[str], Path], tmp_path: Path):
    """As `nohup replicax run ...` wants it when the terminal ends."""
    path = script(
        """
        folder = os.path.dirname(os.path.abspath(__file__))
        open(os.path.join(folder, "up"), "w").close()
        while not os.path.exists(os.path.join(folder, "go")): time.sleep(0.02)
        """
    )
    options = ["--log-dir", str(tmp_path / "logs"), "--workers", "1"]
    command = [sys.executable, "-m", "replicax", "run", *options, str(path)]
    with subprocess.Popen(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command]) as job:
        try:
            wait_for((tmp_path / "up").exists)
            job.send_signal(signal.SIGHUP)
            (tmp_path / "go").touch()
            assert job.wait(LIMIT_S) == 0
        finally:
            job.kill()


def test_a_second_ctrl_c_kills(launcher: Launch):
    job = launcher(
        "signal.signal(signal.SIGINT, lambda *_: print('no'))\nready()\nwhile True: sleep()", "--workers", "2"
    )
    pids = job.pids(2)
    job.process.send_signal(signal.SIGINT)
    wait_for(lambda: all("no" in path.read_text() for path in (job.folder / "logs").glob("*.log")))
    code, _, err = job.end(signal.SIGINT)
    assert code == 130
    assert "SIGINT is passed on to all tasks. Ctrl-C again kills them." in err
    assert "[replicax] Killing all tasks." in err
    assert_all_gone(pids, job.folder)


@pytest.mark.nightly
def test_who_does_not_end_after_the_others_did_is_killed(launcher: Launch):
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN) if index else None\nready()\nwhile True: sleep()"
    job = launcher(body, "--workers", "2", "--grace", "0.2")
    pids = job.pids(2)
    assert job.end(signal.SIGINT)[0] == 130
    assert_all_gone(pids, job.folder)


# As a person runs it.


def replicax(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "replicax", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=LIMIT_S, check=False)


def test_options_after_the_script_are_the_scripts(tmp_path: Path):
    (tmp_path / "train.py").write_text(
        "import os, sys; print(sys.argv[1:], *map(os.environ.get, ['NPROC', 'JAX_NUM_CPU_DEVICES']))"
    )
    options = ["run", "--workers", "1:2", "--devices-per-worker", "50", "train.py", "--workers", "-m", "--help"]
    done = replicax(*options, cwd=tmp_path)
    line = "['--workers', '-m', '--help'] 100 50"
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, [f"[worker 0] {line}", f"[worker 1] {line}"])
    (folder,) = (tmp_path / "runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["ledger", "worker-0.log", "worker-1.log"]


@pytest.mark.nightly
def test_tasks_that_do_not_take_the_signal_are_killed_after_the_grace(launcher: Launch):
    job = launcher(
        "signal.signal(signal.SIGTERM, lambda *_: print('no'))\nready()\nwhile True: sleep()",
        *("--workers", "2", "--grace", "1"),
    )
    pids = job.pids(2)
    code, _, err = job.end(signal.SIGTERM)
    assert code == 143
    assert "[replicax] Killing worker 0, worker 1: not ended 1 s after the signal." in err
    assert not any(map(is_alive, pids))
