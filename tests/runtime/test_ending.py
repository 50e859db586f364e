"""What is being written when a script ends is finished, and what fails then is said."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replicax as rx
from replicax.runtime import ending

_BEGIN = """
import os, sys, threading, time
import numpy as np
import replicax as rx
w = rx.Variable(np.zeros((256, 256), np.float32))
manager = rx.CheckpointManager(sys.argv[1], objects={"w": w})
def train():
    for step in range(1, 4):
        w.assign_add(np.ones((256, 256), np.float32))
        manager.save(step)
"""
_FAILS = """
import replicax.checkpoint.writing as writing
def full(*arguments):
    time.sleep(0.5)
    raise OSError(28, "No space left on device")
"""


def _ended(script: str, folder: Path) -> tuple[int, str, list[int]]:
    ran = subprocess.run(
        [sys.executable, "-c", _BEGIN + script, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    return ran.returncode, ran.stderr, rx.CheckpointManager(folder, objects={"w": rx.Variable(0.0)}).all_steps()


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        pytest.param("", 0, id="last line"),
        pytest.param("sys.exit(3)", 3, id="exit code"),
        pytest.param("1 / 0", 1, id="exception"),
    ],
)
def test_the_last_save_of_a_script_is_there(tmp_path: Path, ending: str, code: int):
    assert _ended(f"train()\n{ending}", tmp_path)[::2] == (code, [1, 2, 3])


def test_a_thread_that_saves_goes_on_after_the_last_line(tmp_path: Path):
    script = """
def train_on():
    manager.save(0)
    begun.set()  # A thread that has called `save`, and has not begun to write, may come too late: the next test.
    train()
begun = threading.Event()
threading.Thread(target=train_on).start()
begun.wait()
"""
    code, said, steps = _ended(script, tmp_path)
    assert (code, steps) == (0, [1, 2, 3]), said


def test_a_thread_that_begins_to_save_too_late_is_told(tmp_path: Path):
    script = """
def save():
    threading.main_thread().join()
    time.sleep(0.2)
    manager.save(1)
threading.Thread(target=save).start()
"""
    code, words, steps = _ended(script, tmp_path)
    assert (code, steps) == (1, [])
    assert "join the thread that saves" in words


def test_the_save_of_a_daemon_is_finished(tmp_path: Path):
    script = """
def save():
    began.set()
    manager.checkpoint.write(sys.argv[1] + "/00000001")
    time.sleep(100)
began = threading.Event()
threading.Thread(target=save, daemon=True).start()
began.wait()
time.sleep(0.05)
"""
    code, _, steps = _ended(script, tmp_path)
    assert (code, steps) == (0, [1])


@pytest.mark.parametrize("ending", ["", "sys.exit(3)"])
def test_a_save_that_fails_when_the_script_has_ended_is_said(tmp_path: Path, ending: str):
    script = (
        _FAILS + f"manager.save(1)\nmanager.wait_until_finished()\nwriting.save_files = full\nmanager.save(2)\n{ending}"
    )
    code, words, steps = _ended(script, tmp_path)
    assert code == 1
    assert "CheckpointError: The checkpoint " in words
    assert "00000002 could not be written: [Errno 28] No space left on device" in words
    assert steps == [1]


def test_a_save_is_finished_before_sigterm_ends_the_script(tmp_path: Path):
    script = "import signal\ntrain()\nos.kill(os.getpid(), signal.SIGTERM)\ntime.sleep(100)"
    code, _, steps = _ended(script, tmp_path)
    assert (code, steps) == (-15, [1, 2, 3])


def test_event_files_are_complete_beside_a_save_that_fails(tmp_path: Path):
    script = """
tracker = rx.trackers.TensorBoard(sys.argv[1] + "/events")
tracker.log({"loss": 1.0}, step=0)
writing.save_files = full
manager.save(1)
"""
    code, _, steps = _ended(_FAILS + script, tmp_path)
    assert (code, steps) == (1, [])
    (file,) = (tmp_path / "events").iterdir()
    assert b"loss" in file.read_bytes()


def test_a_thread_that_exports_is_waited_for(tmp_path: Path):
    script = """
def traced(x):
    begun.set()
    time.sleep(0.3)
    return x * w
begun = threading.Event()
threading.Thread(target=rx.export, args=(traced, sys.argv[1] + "/exported", np.zeros((256, 256), np.float32))).start()
begun.wait()
"""
    assert _ended(script, tmp_path)[0] == 0
    assert (tmp_path / "exported").is_dir()


def test_a_file_that_was_open_when_a_process_joined_its_job_is_complete(tmp_path: Path):
    script = """
import gc
from replicax.runtime.ending import pass_by_garbage
class Log:
    def __init__(self):
        self.me, self.file = self, open(os.path.join(sys.argv[1], "log"), "w")
        self.file.write("begun")
Log()
kept = Log()
pass_by_garbage()
frozen = gc.get_freeze_count()
pass_by_garbage()
assert frozen == gc.get_freeze_count() > 10_000
kept.file.write(", joined")
"""
    code, said, _ = _ended(script, tmp_path)
    assert (code, (tmp_path / "log").read_text()) == (0, "begun, joined"), said


def test_what_the_user_of_an_interactive_session_has_made_can_become_garbage(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)  # IPython sets it, too.
    monkeypatch.setattr(ending, "_passed_by", None)
    before = gc.get_freeze_count()
    ending.pass_by_garbage()
    assert gc.get_freeze_count() == before


def test_an_error_that_another_one_has_caused_has_its_exit_code(tmp_path: Path):
    script = """
from replicax.runtime.ending import keep_exit_codes
keep_exit_codes()
class Lost(Exception):
    exit_code = 71
try:
    raise Lost("a peer")
except Lost as error:
    raise RuntimeError("the step failed") from error
"""
    assert _ended(script, tmp_path)[0] == 71
