"""The launcher with real processes: small scripts, without JAX."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from replicax.job.launching import Options, launch
from replicax.job.processes import processes
from replicax.job.supervision.state import PATIENCE
from tests.job.launching.conftest import Done, is_alive

pytestmark = pytest.mark.multiprocess
Run = Callable[..., Done]


# When all goes well.


def test_each_line_has_its_workers_name_and_each_worker_its_log(run: Run):
    done = run(
        """
        print("args", sys.argv[1:])
        print("to stderr", file=sys.stderr)
        print("raw \\xff", end="")
        """,
        "--x",
        "y z",
        workers=3,
    )
    assert done.code == 0
    assert sorted(done.out.splitlines()) == [
        line for index in range(3) for line in (f"[worker {index}] args ['--x', 'y z']", f"[worker {index}] raw ÿ")
    ]
    assert sorted(done.err.splitlines()) == [f"[worker {index}] to stderr" for index in range(3)]
    for index in range(3):
        words, log = ["args ['--x', 'y z']\n", "raw ÿ", "to stderr"], done.log(f"worker-{index}")
        assert [word for word in words if word not in log] == []
        # Where a line ends, the other stream may come between; nothing is lost, and nothing is there twice.
        assert sorted(log) == sorted("".join([*words, "\n"]))


def test_a_module_can_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text("import sys; print(__name__, sys.argv[1:])")
    code = launch(Options("job", ("a",), module=True, log_dir=tmp_path / "logs"))
    assert code == 0
    assert capfd.readouterr().out == "[worker 0] __main__ ['a']\n"


def test_workers_may_end_at_different_times(run: Run):
    done = run("time.sleep(0.4 * index)\nprint('done')", grace=0.0)
    assert done.code == 0
    assert done.out == "[worker 0] done\n[worker 1] done\n"


def test_the_ports_are_kept_for_the_workers(run: Run):
    done = run(
        """
        import socket
        host, port = role["cluster"]["worker"][index].split(":")
        with socket.create_server((host, int(port))):
            print("listens")
        """
    )
    assert (done.code, sorted(done.out.splitlines())) == (0, ["[worker 0] listens", "[worker 1] listens"])


def test_the_evaluator_ends_by_itself(run: Run):
    done = run(
        """
        time.sleep(0.5 if kind == "evaluator" else 0)
        print("done")
        """,
        evaluator=True,
    )
    assert done.code == 0
    assert sorted(done.out.splitlines()) == ["[evaluator 0] done", "[worker 0] done", "[worker 1] done"]
    assert "[replicax] The training is done; waiting for evaluator 0. Ctrl-C ends it." in done.err


def test_nothing_that_a_worker_started_outlives_it(run: Run, tmp_path: Path):
    run(
        """
        child = subprocess.Popen(["sleep", "100"])
        open(sys.argv[1] + str(index), "w").write(str(child.pid))
        """,
        str(tmp_path / "pid-"),
    )
    started = [int((tmp_path / f"pid-{index}").read_text()) for index in range(2)]
    deadline = time.monotonic() + 10  # They have been killed; the system takes its time to end them.
    while any(map(is_alive, started)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [is_alive(pid) for pid in started] == [False, False]


def test_our_own_signal_handlers_are_put_back(run: Run):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run("pass")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_terminal_shows_the_bar_of_worker_0_only(script: Callable[[str], Path], tmp_path: Path):
    path = script(
        """
        assert sys.stdout.isatty() == (index == 0)
        for step in range(3):
            print(f"\\r{step} of worker {index}", end="", flush=True)
            time.sleep(0.05)
        print()
        print(os.get_terminal_size().columns if index == 0 else "line")
        """
    )
    screen, end = pty.openpty()
    launched = f"launch(Options({str(path)!r}, workers=2, log_dir=Path()))"
    code = f"from replicax.job.launching import *; raise SystemExit({launched})"
    process = subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path; {code}"],
        stdout=end,
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "70", "LINES": "20", "NO_COLOR": "1"},
    )
    os.close(end)
    shown = b""
    while select.select([screen], [], [], 30)[0]:
        try:
            shown += os.read(screen, 65_536)
        except OSError:
            break
    os.close(screen)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "\x1b[?7l1 of worker 0\x1b[?7h" in text
    assert "of worker 1" not in text
    assert "[worker 0] 59\r\n" in text
    assert "[worker 1] line\r\n" in text
    assert "\r1 of worker 1" in (tmp_path / "worker-1.log").open(newline="").read()


# When something fails.


def test_the_first_failure_ends_the_others_and_is_shown_last(run: Run):
    done = run(
        """
        def fail():
            raise ValueError(f"boom {index}")
        time.sleep(0.3 if index == 1 else 100)
        fail()
        """,
        workers=3,
    )
    assert done.code == 1
    assert (
        "[replicax] worker 1 failed (exit code 1: an error in the script); ending worker 0, worker 2 within 1 s."
        in (done.err)
    )
    assert "──────── worker 1 failed first: exit code 1: an error in the script ────────\n" in done.err
    assert f"Its log: {done.logs / 'worker-1.log'}\n\nTraceback (most recent call last):\n" in done.err
    assert done.err.endswith("\nValueError: boom 1\n")
    assert done.err.count("ValueError: boom 1") == 1  # at the end
    assert "ValueError: boom 1\n" in done.log("worker-1")
    assert len(done.err.splitlines()) < 20


def test_a_failure_that_follows_from_the_first_is_not_shown_as_such(run: Run):
    done = run(
        """
        import socket
        address = ("127.0.0.1", int(role["cluster"]["worker"][0].split(":")[1]))
        if index == 0:
            with socket.create_server(address) as server:
                connection, _ = server.accept()
                while connection.recv(1):
                    pass
                raise OSError("my peer has gone")
        while True:
            try:
                connection = socket.create_connection(address)
                break
            except OSError:
                time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert done.code == 137
    assert "worker 1 failed first: exit code 137: ended by SIGKILL" in done.err
    assert done.err.endswith("It printed nothing.\n")


def test_a_script_that_has_failed_but_does_not_end_is_a_failure(run: Run):
    """As JAX does it: the way out leads through a barrier where the others never come."""
    done = run(
        """
        import atexit
        if index == 0:
            atexit.register(print, "after the traceback", file=sys.stderr)
            atexit.register(sleep)
            raise ValueError("boom")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep()
        """,
        grace=0.5,
    )
    assert done.code == 1
    assert done.err.endswith("ValueError: boom\n")


def test_survivors_are_asked_first_and_have_the_grace_to_end(run: Run):
    done = run(
        """
        signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print("saved"), sys.exit(0)))
        print("ready", flush=True)
        time.sleep(0.5)
        if index == 1:
            os._exit(3)
        sleep()
        """,
        grace=20.0,
    )
    assert done.code == 3
    assert "[worker 0] saved" in done.out


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("sys.exit(7)", 7, "exit code 7 "),
        ("import atexit; atexit.register(os.abort); sys.exit(7)", 7, "\n\nIt printed nothing.\n"),
        ("import atexit; atexit.register(os.abort); sys.exit('no data')", 1, "\n\nno data\n"),
        ("sys.exit('no data')", 1, "no data\n"),
        ("os.abort()", 134, "Fatal Python error: Aborted"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "ended by SIGSEGV"),
        ("raise KeyboardInterrupt", 130, "KeyboardInterrupt\n"),
        ("print('this may help'); os._exit(9)", 9, "\n\nthis may help\n"),
    ],
)
def test_the_exit_code_is_that_of_the_worker(run: Run, body: str, code: int, words: str):
    done = run(f"sys.stdout.reconfigure(line_buffering=True)\n{body}", workers=1)
    assert done.code == code
    assert words in done.err


def test_a_full_output_of_many_lines_is_kept(run: Run):
    done = run("print('x' * 999 + '\\n', end='', flush=True) if index else [print(n) for n in range(20_000)]")
    assert done.code == 0
    assert done.log("worker-0") == "".join(f"{number}\n" for number in range(20_000))
    assert done.out.count("\n") == 20_001


@pytest.mark.parametrize("late", [False, True], ids=["told before the end", "told after the end"])
def test_who_gave_up_because_of_another_names_that_one(late: bool, run: Run, monkeypatch: pytest.MonkeyPatch):
    """As the health monitor does it when a worker has been stopped."""
    if late:
        take_news = processes.Process._take_news

        def slow(self: processes.Process, told: dict[str, Any]) -> None:
            time.sleep(0.5)
            take_news(self, told)

        monkeypatch.setattr(processes.Process, "_take_news", slow)
    done = run(
        """
        if index == 0:
            time.sleep(0.5)
            pid, news = os.environ["REPLICAX_NEWS"].split(":")
            assert int(pid) == os.getpid()
            told = {"code": 70, "time": time.monotonic(), "words": "worker:2 stands still", "blames": ["worker 2"]}
            os.write(int(news), json.dumps(told).encode() + b"\\n")
            os._exit(70)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sleep()
        """,
        workers=3,
        grace=0.2,
    )
    assert done.code == 70
    assert "worker 2 failed (exit code 70: no progress for too long); ending worker 1, worker 2 within" in done.err
    assert "──────── worker 2 failed first: exit code 70: no progress for too long ────────\n" in done.err
    assert f"Its log: {done.logs / 'worker-2.log'} (found by worker 0)\n\nworker:2 stands still\n" in done.err


NEWS = """
pid, news = os.environ["REPLICAX_NEWS"].split(":")
def tell(**told):
    os.write(int(news), json.dumps(told).encode() + b"\\n")
"""


@pytest.mark.parametrize("others", ["raise ValueError('Connection closed by peer')", "sleep()"])
def test_a_worker_that_vanishes_with_0_while_others_need_it_is_the_one_that_is_lost(others: str, run: Run):
    body = f"{NEWS}\ntell(meets=2)\nif index == 1: os._exit(0)\ntime.sleep(0.5)\n{others}"
    done = run(body, patience=PATIENCE._replace(end=1.0))
    assert done.code == 71
    assert "worker 1 failed first: exit code 71: it was gone, and others needed it" in done.err
    assert "ended with exit code 0 in the middle of the job" in done.err
    assert "Connection closed" not in done.err


def test_a_worker_that_ends_with_0_before_it_meets_those_who_wait_is_told_at_once(run: Run):
    done = run(f"{NEWS}\nif index == 1: sys.exit(0)\ntime.sleep(0.5)\ntell(meets=2)\nsleep()", restarts=1)
    assert done.code == 71
    assert "worker 1 ended with exit code 71: it was gone, and others needed it (replicax: the process of" in done.err
    assert "ended with exit code 0 before it came to where worker 0 waited for it" in done.err


@pytest.mark.parametrize(
    "body",
    [
        "tell(meets=2); time.sleep(0.3 * index); os._exit(0)",  # all of them, after their last line
        "tell(meets=2); tell(leaves=True); time.sleep(2.0 * index)",
        "if index == 0: tell(meets=1); time.sleep(2)",  # a cluster of its own
    ],
)
def test_who_ends_with_0_where_nobody_needs_it_has_done_well(body: str, run: Run):
    done = run(f"{NEWS}\n{body}", patience=PATIENCE._replace(end=1.0))
    assert (done.code, done.err) == (0, "")


def test_a_failure_shows_few_lines_however_many_there_are(run: Run):
    done = run(
        """
        class Long(Exception):
            pass
        if index == 0:
            signal.signal(signal.SIGTERM, lambda *_: os.abort())
            open(os.path.dirname(os.path.abspath(__file__)) + "/ready", "w").close()
        if index == 1:
            while not os.path.exists(os.path.dirname(os.path.abspath(__file__)) + "/ready"):
                time.sleep(0.02)
            raise Long("\\n".join(f"line {i}" for i in range(700)))
        sleep()
        """,
        workers=3,
    )
    assert done.code == 1
    assert len(done.err.splitlines()) <= 60
    assert "line 699" in done.log("worker-1")
    assert "Fatal Python error: Aborted" in done.log("worker-0")
