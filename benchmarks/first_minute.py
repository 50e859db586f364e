"""A newcomer's first minute: `make demo` in a fresh clone, and what is printed when a training fails.

    python benchmarks/first_minute.py [--no-demo]

The clone is of what is committed. `make demo` runs on a terminal of 80 x 24. The seconds are those from no virtual
environment to the end of the training; they depend on the package index, so run it twice: the second time pip has the
files. `silent_s` is the longest time in which the terminal shows nothing new. Lines are those that stay, without pip's
warnings and with the prompt. The megabytes are what `.venv` takes on the disk after it, and what of that is not of the
packages jax and jaxlib; a table says which packages take most. A failing training is counted by the lines on the
terminal, progress of the training included: on three workers the most over which of them fails, and for a step that
fails the more of a loop and of `fit`. Ends with 1 where a limit is passed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import resource
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path
from typing import NamedTuple

from timing import print_table

ROOT = Path(__file__).resolve().parent.parent
FAILING = ROOT / "benchmarks" / "failing.py"
WORKERS = 3
SHOWN = 8
COLUMNS, ROWS = 80, 24
LIMITS = {
    "first_minute_s": 25,
    "silent_s": 3,
    "demo_lines": ROWS,
    "demo_install_mb": 750,
    "core_beside_jax_mb": 500,
    "failing_worker_lines": 40,
    "failing_step_lines": 20,
}


class Watched(NamedTuple):
    """A command as somebody saw it who sat at its terminal."""

    seconds: float
    processor_seconds: float  # of it and its children
    silent: float  # seconds
    printed: str


def watched(command: list[str], folder: Path, environment: dict[str, str]) -> Watched:
    """Runs a command on a terminal of its own.

    Raises:
        RuntimeError: It fails.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    printed, silent = [], 0.0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = last = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=its, stdout=its, stderr=its) as process:
        os.close(its)
        while process.returncode is None:
            try:
                printed.append(os.read(ours, 1 << 16))
            except OSError:  # Nobody can write to it any more.
                process.wait()
            now = time.perf_counter()
            silent, last = max(silent, now - last), now
    os.close(ours)
    shown = b"".join(printed).decode()
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}:\n{shown}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return Watched(last - start, processor, silent, shown)


def lines_shown(printed: str) -> int:
    """Returns how many lines of a terminal are used. What rich draws over itself is one; pip's warnings are none."""
    upwards = sum(int(count or 1) for count in re.findall(r"\x1b\[(\d*)A", printed))
    return printed.count("\n") - upwards - printed.count("WARNING: ") + 1


def measured_demo(folder: Path) -> tuple[dict[str, float], Path]:
    """Returns the figures of `make demo` in a clone made in `folder`, and the environment that it installs."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"TERM": "xterm-256color"}
    seen = watched(["make", "demo", f"PYTHON={own_python()}"], clone, environment)
    print(re.sub(r"[^\n]*\x1b\[2K", "", seen.printed))
    installed = clone / ".venv"
    results = {
        "first_minute_s": round(seen.seconds, 1),
        "first_minute_processor_s": round(seen.processor_seconds, 1),
        "silent_s": round(seen.silent, 1),
        "demo_lines": lines_shown(seen.printed),
        "demo_install_mb": round(megabytes(installed)),
        "core_beside_jax_mb": round(megabytes(installed) - sum(map(megabytes, of_jax(installed)))),
    }
    return results, installed


def own_python() -> str:
    """Returns the Python that virtual environments are made with: not one inside of such an environment."""
    return os.path.realpath(sys.executable)


def megabytes(folder: Path) -> float:
    """Returns what the files below `folder` take on the disk; links are not followed."""
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*")) / 1e6


def of_jax(environment: Path) -> list[Path]:
    """Returns the folders of the packages jax and jaxlib."""
    return [folder for name in ("jax", "jaxlib") for folder in environment.glob(f"lib/python3*/site-packages/{name}")]


def largest(environment: Path) -> list[tuple[str, str]]:
    """Returns the names and megabytes of the packages that take most of an environment, and of all others together."""
    [packages] = environment.glob("lib/python3*/site-packages")
    sizes = {each.name: megabytes(each) for each in packages.iterdir() if each.is_dir()}
    shown = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
    others = megabytes(environment) - sum(sizes[name] for name in shown)
    return [(name, f"{sizes[name]:.0f}") for name in shown] + [("all others", f"{others:.0f}")]


def failing_lines(command: list[str], folder: Path, expected: str) -> int:
    """Returns how many lines a command prints that fails.

    Raises:
        RuntimeError: It does not fail, or does not say why.
    """
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode == 0 or expected not in done.stdout:
        raise RuntimeError(f"{command} ended with {done.returncode}, and should have failed:\n{done.stdout}")
    return len(done.stdout.splitlines())


def measured_failures(folder: Path) -> dict[str, int]:
    """Returns the lines printed by each failing training."""
    run = ["-m", "replicax", "run", "--workers", str(WORKERS), str(FAILING)]
    found = {
        f"worker {number} of {WORKERS} fails": failing_lines([*run, str(number)], folder, "the disk is full")
        for number in range(WORKERS)
    }
    for where in ("step", "fit"):
        name = {"step": "the step of a loop fails", "fit": "the step of `fit` fails"}[where]
        found[name] = failing_lines([str(FAILING), where], folder, "incompatible with the layer")
    return found


def main() -> None:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-demo", action="store_true", help="count the lines only")
    arguments = parser.parse_args()
    results: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        if not arguments.no_demo:
            results, environment = measured_demo(Path(folder))
            print_table("Installed", ("package", "MB on the disk"), largest(environment))
        failures = measured_failures(Path(folder))
    print_table("Lines printed", ("what happens", "lines"), [(name, str(lines)) for name, lines in failures.items()])
    results["failing_worker_lines"] = max(lines for name, lines in failures.items() if name.startswith("worker"))
    results["failing_step_lines"] = max(lines for name, lines in failures.items() if name.startswith("the step"))
    for name, value in results.items():
        print(f"RESULT {name} {value}")
    passed = [
        f"{name} is {results[name]}, the limit {limit}"
        for name, limit in LIMITS.items()
        if results.get(name, 0) > limit
    ]
    sys.exit("\n".join(passed) if passed else 0)


if __name__ == "__main__":
    main()
