"""Plants the faults of `tests/planted/` in a copy of the repository, one at a time, and says which test finds each.

`python tests/planted.py` takes all; `--sample 20 --seed 1` a part, `--room data` those of a room, `--name X` one. Each
is looked for by its own tests, then by those of its room, then by all that `make test` runs, until one fails. A test
that fails without the fault as well finds nothing: what fails is tried again in the right code, and then left out.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import math
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().with_suffix("")
ITSELF = "tests/test_planted.py"  # It looks for the right code, and would find every fault.
# The room of the modules that stand alone in `replicax/`, and of pytest's plugin.
CORE = "core"
# A process that says nothing for so long after the time limit of a test hangs outside of all tests.
SECONDS_TO_COLLECT = 300.0
# From the first failure to the end of pytest. A thread that a fault lets wait keeps it alive, and may go on to talk.
SECONDS_TO_END = 60.0
# All processes of a run have it in their environment, also those that left its process group.
MARK = "REPLICAX_PLANTED"
# A line of `pytest -v` about a test, and one of several processes.
_FAILED = re.compile(
    r"^(?:(?P<alone>tests/\S+?\.py::.*) (?:FAILED|ERROR) +\[ *\d+%\]|"
    r"\[gw\d+\] \[ *\d+%\] (?:FAILED|ERROR) (?P<beside>tests/.*?)) *$",
    re.MULTILINE,
)

# What stands behind a test's name: how it ended, or that its time was up.
_BEGAN = re.compile(
    r"^(tests/\S+?\.py::.*?)(?: (?:PASSED|SKIPPED|XFAIL|XPASS)\b.*| \+{3,} Timeout.*)? *$", re.MULTILINE
)


class Fault(NamedTuple):
    """A fault: text that stands once in a file, and what a careless change makes of it."""

    room: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """What should find it first."""
    room_tests: tuple[str, ...]

    def changed(self, text: str) -> str:
        """Returns the file's text with the fault in it."""
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"The fault {self.name!r} of {self.room} no longer fits: its old text stands {count} times in "
                f"{self.file}, and should once. Whoever moves code moves the fault: tests/planted/{self.room}.toml."
            )
        return text.replace(self.old, self.new)


class Failure(NamedTuple):
    """What failed first in a run of pytest: a test, or a module that could not be imported."""

    test: str
    is_test: bool


def rooms() -> list[str]:
    """Returns the names of the rooms: the packages of `replicax/`, and one for the modules beside them."""
    names = {init.parent.name for init in (ROOT / "replicax").glob("*/__init__.py")}
    return [*sorted(names - {"moved"}), CORE]  # `moved` has the old import paths


def faults() -> list[Fault]:
    """Reads all faults."""
    found = []
    for path in sorted(FOLDER.glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        room_tests = tuple(table.get("tests", [f"tests/{path.stem}"]))
        for fault in table["fault"]:
            tests = tuple(fault.get("tests", ()))
            found.append(Fault(path.stem, fault["name"], fault["file"], fault["old"], fault["new"], tests, room_tests))
    return found


def expression(root: Path = ROOT) -> str:
    """Returns which tests `make test` runs, as its `-m` says."""
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    match = re.search(r"^test:.*\n\t.*pytest.* -m \"([^\"]+)\"", makefile, re.MULTILINE)
    if match is None:
        raise ValueError('The Makefile\'s target `test` has no `-m "..."` any more: tests/planted.py reads it there.')
    return match.group(1)


@contextlib.contextmanager
def copy(commit: str | None) -> Iterator[Path]:
    """Makes a copy of the tracked files as they are now, or as they were in a commit; removes it at the end."""
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        if commit is None:
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
            names = [name for name in listed.decode().split("\0") if name and (ROOT / name).exists()]
            archive = io.BytesIO()
            with tarfile.open(fileobj=archive, mode="w") as writing:
                for name in names:
                    writing.add(ROOT / name, name, recursive=False)
            archive.seek(0)
        else:
            made = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
            archive = io.BytesIO(made)
        with tarfile.open(fileobj=archive) as reading:
            reading.extractall(folder, filter="tar")
        yield Path(folder).resolve()


@contextlib.contextmanager
def planted(scratch: Path, fault: Fault) -> Iterator[None]:
    """Puts the fault into the copy, and takes it out again."""
    path = scratch / fault.file
    right = path.read_text(encoding="utf-8")
    _write(path, fault.changed(right))
    try:
        yield
    finally:
        _write(path, right)


def _write(path: Path, text: str) -> None:
    """Writes a module, and forgets its bytecode: a change of one sign in the same second would go unnoticed."""
    path.write_text(text, encoding="utf-8")
    Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


class Runner:
    """Runs tests in the copy."""

    def __init__(self, scratch: Path, limit: int, processes: int) -> None:
        self.scratch = scratch
        self.limit = limit
        self.processes = processes
        self.right: set[str] = set()
        """Tests that have passed in the right code."""
        self.broken: set[str] = set()
        """Those that fail there, too, here and now."""

    def look(self, fault: Fault, near: bool) -> tuple[str | None, str]:
        """Returns the test that finds a fault, and among which tests it was; None if none does."""
        stages = [("its own tests", fault.tests, ()), ("its room", fault.room_tests, fault.tests)]
        if not near:
            stages.append(("the others", ("tests",), (*fault.tests, *fault.room_tests)))
        for stage, tests, done in stages:
            tests = tuple(test for test in tests if test not in done and self._exists(test))
            done = tuple(test for test in done if any(_within(test, other) for other in tests))
            while tests:
                with planted(self.scratch, fault):
                    failure = self.run(tests, done)
                if failure is None:
                    break
                if self._is_right(failure):
                    return failure.test, stage
                if failure.test in self.broken:
                    raise RuntimeError(f"pytest cannot leave out {failure.test}, which fails without a fault.")
                self.broken.add(failure.test)  # And once more without it.
        return None, "no test"

    def _is_right(self, failure: Failure) -> bool:
        """Returns whether what failed passes without the fault."""
        if failure.test not in self.right and self.run((failure.test,), only_collects=not failure.is_test) is None:
            self.right.add(failure.test)
        return failure.test in self.right

    def _exists(self, test: str) -> bool:
        return (self.scratch / test.partition("::")[0]).exists()

    def run(self, tests: tuple[str, ...], without: tuple[str, ...] = (), only_collects: bool = False) -> Failure | None:
        """Runs tests until one fails."""
        command = [sys.executable, "-m", "pytest", "-x", "-v", "-rE", "--color=no", "--no-header", "--tb=no"]
        command += ["-p", "no:cacheprovider", "-m", expression(self.scratch), f"--timeout={self.limit}"]
        if only_collects:
            command.append("--collect-only")
        elif self.processes > 1 and "::" not in tests[0]:
            command += ["-n", str(self.processes), "--dist", "worksteal"]
        command += [_leaving_out(test) for test in (ITSELF, *without, *sorted(self.broken))]
        code, output = self._listen([*command, *tests])
        # 5: nothing to run, as where all of a file's tests are for `make test-all`.
        return None if code in (0, 5) else failure_in(output, tests)

    def _listen(self, command: list[str]) -> tuple[int, str]:
        """Runs a command to its end, or until it has been silent for too long; nothing that it started outlives it."""
        mark = f"{os.getpid()}-{time.monotonic_ns()}"
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.scratch,
                env={**os.environ, "PYTHONPATH": str(self.scratch), MARK: mark},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                said, since, until = 0, time.monotonic(), math.inf
                while process.poll() is None:
                    time.sleep(0.1)
                    now = time.monotonic()
                    if (size := os.fstat(output.fileno()).st_size) != said:
                        said, since = size, now
                        if until == math.inf and _FAILED.search(
                            os.pread(output.fileno(), size, 0).decode(errors="replace")
                        ):
                            until = now + SECONDS_TO_END
                    if now > min(since + self.limit + SECONDS_TO_COLLECT, until):
                        break
            finally:
                _end(process, mark)
            output.seek(0)
            return process.returncode, output.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends a process, its group, and all that carry its mark."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    sign = f"{MARK}={mark}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # It has ended meanwhile, or belongs to another user.
            if sign in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def _leaving_out(test: str) -> str:
    """Returns pytest's option: a file or folder is left out as such, since to deselect costs a look at each test."""
    return f"--{'deselect' if '::' in test else 'ignore'}={test}"


def failure_in(output: str, tests: tuple[str, ...]) -> Failure:
    """Returns what failed: as pytest says, or the test that began last, where its time limit ended pytest."""
    if found := _FAILED.search(output):
        return Failure(found["alone"] or found["beside"], True)
    if found := re.search(r"^ERROR (tests/\S+)", output, re.MULTILINE):
        return Failure(found[1], False)
    if began := _BEGAN.findall(output):
        return Failure(began[-1], True)
    return Failure(tests[0], False)  # conftest.py cannot be imported.


def _within(test: str, other: str) -> bool:
    """Says whether a test, a file or a folder is a part of another."""
    return test == other or test.startswith((f"{other}/", f"{other}::"))


def chosen(all_faults: list[Fault], options: argparse.Namespace) -> list[Fault]:
    """Returns the faults that the command line asks for."""
    asked = {*(options.room or ()), *(options.name or ())}
    if unknown := asked - {word for fault in all_faults for word in (fault.room, fault.name)}:
        raise SystemExit(f"No room and no fault is called {', '.join(sorted(unknown))}; see tests/planted/.")
    wanted = [fault for fault in all_faults if not asked or asked & {fault.room, fault.name}]
    if options.sample is not None and options.sample < len(wanted):
        kept = {fault.name for fault in random.Random(options.seed).sample(wanted, options.sample)}
        wanted = [fault for fault in wanted if fault.name in kept]
    return wanted


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns 1 if a fault survived."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, metavar="N", help="so many of the faults, drawn at random")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="draws another sample")
    parser.add_argument("--room", action="append", metavar="R", help="those of a room; may be repeated")
    parser.add_argument("--name", action="append", metavar="X", help="this one, beside those of rooms; may be repeated")
    parser.add_argument("--near", action="store_true", help="stop after the tests of the room")
    parser.add_argument("--limit", type=int, default=300, metavar="SECONDS", help="how long one test may take")
    parser.add_argument("--processes", type=int, default=1, metavar="P", help="pytest's processes, as of its -n")
    parser.add_argument("--commit", metavar="C", help="take product and tests as they were there")
    options = parser.parse_args(arguments)

    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # So that what runs is ended.
    wanted = chosen(faults(), options)
    found, survivors, unfit = 0, [], []
    with copy(options.commit) as scratch:
        runner = Runner(scratch, options.limit, options.processes)
        for fault in wanted:
            path = scratch / fault.file
            if options.commit and (not path.exists() or path.read_text(encoding="utf-8").count(fault.old) != 1):
                unfit.append(fault)  # The code was another one then.
                continue
            start = time.monotonic()
            test, stage = runner.look(fault, options.near)
            seconds = f"{time.monotonic() - start:.0f} s"
            if test is None:
                survivors.append(fault)
                print(f"SURVIVED {fault.room} {fault.name} ({seconds})", flush=True)
            else:
                found += 1
                print(f"found    {fault.room} {fault.name}: {test} ({stage}, {seconds})", flush=True)
        for test in sorted(runner.broken):
            print(f"left out, because it fails without a fault: {test}")
    for fault in survivors:
        print(f"survivor {fault.room} {fault.name} ({fault.file})")
    for fault in unfit:
        print(f"does not fit {options.commit}: {fault.room} {fault.name} ({fault.file})")
    print(f"RESULT planted_total {len(wanted) - len(unfit)}")
    print(f"RESULT planted_found{'_before' if options.commit else ''} {found}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
