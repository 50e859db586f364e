"""A script under the launcher finds what it would find under plain Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replicax.job.processes import child, reaper_main

pytestmark = pytest.mark.multiprocess


def as_a_child(kind: str, target: object, *arguments: str, cwd: Path, launcher: int | None = None):
    """Runs it as the launcher would; returns the process and what it told."""
    source, news = os.pipe()
    command = [sys.executable, child.__file__, str(launcher or os.getpid()), str(news), kind, str(target), *arguments]
    done = subprocess.run(command, pass_fds=[news], capture_output=True, text=True, cwd=cwd, timeout=30, check=False)
    os.close(news)
    with os.fdopen(source) as told:
        return done, told.read()


def as_python(*arguments: object, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=30, check=False)


LOOK_AROUND = """
import inspect, json, pickle, sys
import __main__, neighbour
class Thing: pass
print(json.dumps([sys.argv, sys.path, __name__, __file__, str(__package__), __spec__ and __spec__.name, __doc__,
    sorted(set(vars(__main__)) - {"__annotations__", "__cached__"}),
    __main__.Thing is Thing, pickle.loads(pickle.dumps(Thing)) is Thing,
    inspect.getsource(Thing), "replicax" in sys.modules, "jax" in sys.modules]))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    (tmp_path / "neighbour.py").touch()
    for path in (tmp_path / "script.py", tmp_path / "module.py", package / "__main__.py"):
        path.write_text(LOOK_AROUND)
    (package / "__init__.py").touch()
    return tmp_path


def test_a_script_sees_what_python_shows_it(place: Path):
    (place / "elsewhere").mkdir()
    for script, cwd in [("script.py", place), (place / "script.py", place / "elsewhere")]:
        ours, told = as_a_child("file", script, "--a", "b c", cwd=cwd)
        assert (ours.stderr, told) == ("", "")
        assert json.loads(ours.stdout) == json.loads(as_python(script, "--a", "b c", cwd=cwd).stdout)


@pytest.mark.parametrize("name", ["module", "package"])
def test_a_module_sees_what_python_shows_it(name: str, place: Path):
    ours, told = as_a_child("module", name, "x", cwd=place)
    assert (ours.stderr, told) == ("", "")
    assert json.loads(ours.stdout) == json.loads(as_python("-m", name, "x", cwd=place).stdout)


@pytest.mark.parametrize(
    "body",
    [
        "def f():\n    raise ValueError('boom')\nf()",
        "try:\n    1 / 0\nexcept ArithmeticError:\n    raise KeyError('k') from None",
        "try:\n    1 / 0\nexcept ArithmeticError:\n    {}['k']",
        "a b",
        "import absent_module",
        "import sys\nsys.excepthook = lambda *_: print('mine', file=sys.stderr)\n1 / 0",
    ],
)
def test_an_exception_looks_as_under_python_and_is_told(body: str, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(body)
    ours, told = as_a_child("file", script, cwd=tmp_path)
    plain = as_python(script, cwd=tmp_path)
    assert (ours.stderr, json.loads(told)["words"]) == ("", plain.stderr)
    assert ours.returncode == plain.returncode == json.loads(told)["code"] == 1


def test_an_error_that_knows_its_exit_code_ends_the_process_with_it(tmp_path: Path):
    (tmp_path / "script.py").write_text("class Differ(Exception):\n    exit_code = 72\nraise Differ('programs')")
    ours, told = as_a_child("file", "script.py", cwd=tmp_path)
    assert ours.returncode == json.loads(told)["code"] == 72


CALLS = [("sys.exit(75)", 75), ("sys.exit(-1)", 255), ("sys.exit('no')", 1), ("sys.exit(['a', 1])", 1), ("exit()", 0)]
CALLS += [("sys.exit(0)", 0), ("sys.exit(None)", 0), ("1", 0)]


@pytest.mark.parametrize(("call", "code"), CALLS)
def test_an_exit_is_told_as_what_it_is_with_its_message(call: str, code: int, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(f"import sys\n{call}")
    ours, told = as_a_child("file", script, cwd=tmp_path)
    plain = as_python(script, cwd=tmp_path)
    assert (ours.stderr, json.loads(told)["words"] if told else "") == ("", plain.stderr)
    assert ours.returncode == plain.returncode == code
    assert (json.loads(told)["code"] if told else None) == (code or None)


def test_a_package_without_a_main_module(place: Path):
    (place / "package" / "__main__.py").unlink()
    ours, told = as_a_child("module", "package", cwd=place)
    assert (ours.stderr, json.loads(told)["code"]) == ("", 1)
    assert "'package' is a package without a module __main__" in json.loads(told)["words"]


def test_who_starts_after_the_launcher_has_died_ends_at_once(place: Path):
    ours, told = as_a_child("file", "script.py", cwd=place, launcher=1)
    assert (ours.returncode, ours.stdout, ours.stderr, told) == (1, "", "", "")


def test_multiprocessing_works_in_a_script(tmp_path: Path):
    (tmp_path / "script.py").write_text(
        "import multiprocessing\n"
        "def double(x):\n    return 2 * x\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
    )
    ours, _ = as_a_child("file", "script.py", cwd=tmp_path)
    assert (ours.stdout, ours.stderr) == ("[2, 4]\n", "")


def test_the_guard_kills_the_groups_that_are_left():
    sleepers = [subprocess.Popen(["sleep", "100"], start_new_session=True) for _ in range(2)]
    try:
        reaper_main.main([f"+{sleepers[0].pid}\n", f"+{sleepers[1].pid}\n", f"-{sleepers[1].pid}\n", "+99999999\n"])
        assert sleepers[0].wait(10) == -9
        assert sleepers[1].poll() is None
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()
