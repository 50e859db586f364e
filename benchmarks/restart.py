"""Kills workers of a job and measures how long it takes until the job makes its next step.

    python benchmarks/restart.py [--kills 4] [--kind fit]

`replicax run --workers 2 --restarts N` runs `restart_job.py`: the network of the MNIST example, which saves every 20
steps. A random worker (worker 0 included) gets SIGKILL after a random number of steps. The time is that from the signal
until all workers of the new attempt have completed a step; `restart_s` is the median. The lines before it say where the
time goes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

JOB = Path(__file__).with_name("restart_job.py")
WORKERS = 2
LIMIT_S = 100.0
PARTS = ("began", "imported", "connected", "built", "restored", "step")


class Marks:
    """The marks of all workers."""

    def __init__(self, folder: Path):
        self._files = [folder / f"marks-{worker}.txt" for worker in range(WORKERS)]

    def read(self) -> list[list[tuple[int, int, str, float]]]:
        """Returns attempt, process, mark and time of each mark of each worker."""
        found = []
        for path in self._files:
            lines = path.read_text().splitlines() if path.exists() else []
            parts = [line.split() for line in lines]
            found.append([(int(p[0]), int(p[1]), p[2], float(p[3])) for p in parts if len(p) == 4])
        return found

    def of(self, attempt: int) -> list[dict[str, float]]:
        """Returns when each worker first came to each mark in an attempt."""
        workers = []
        for marks in self.read():
            first: dict[str, float] = {}
            for number, _, what, at in marks:
                if number == attempt:
                    first.setdefault(what, at)
            workers.append(first)
        return workers

    def pids(self, attempt: int) -> list[int]:
        return [next(pid for number, pid, _, _ in marks if number == attempt) for marks in self.read()]

    def steps(self, attempt: int) -> int:
        return min(sum(n == attempt and what == "step" for n, _, what, _ in marks) for marks in self.read())


def own_weight() -> str:
    """Returns the scheduling weight of this session, which the workers give the sessions of their own (Linux)."""
    try:
        return Path("/proc/self/autogroup").read_text().split()[-1]
    except OSError:
        return ""


def wait_for(condition, process) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit("The job did not come back.")
        time.sleep(0.01)


def kill_once(marks: Marks, process, attempt: int, steps: int, victim: int) -> tuple[float, dict[str, float]]:
    """Kills a worker after some steps of an attempt; returns the seconds until the next step, and their parts."""
    wait_for(lambda: marks.steps(attempt) >= steps, process)
    pid = marks.pids(attempt)[victim]
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: all("step" in worker for worker in marks.of(attempt + 1)), process)
    workers = marks.of(attempt + 1)
    times = {part: max(worker[part] for worker in workers) - killed for part in PARTS}
    parts, before = {}, 0.0
    for part in PARTS:
        parts[part], before = times[part] - before, times[part]
    return times["step"], parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--kind", choices=["fit", "loop"], default="fit")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", action="store_true", help="show the job's output")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    seconds = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        command = [sys.executable, "-m", "replicax", "run", "--workers", str(WORKERS), "--restarts", "99"]
        command += ["--log-dir", str(folder / "logs"), str(JOB), args.kind, str(folder), "1000000"]
        output = None if args.output else stack.enter_context(open(folder / "output.txt", "w"))
        environment = {**os.environ, "BENCHMARK_WEIGHT": own_weight()}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            marks = Marks(folder)
            for attempt in range(args.kills):
                victim = attempt % WORKERS
                took, parts = kill_once(marks, process, attempt, rng.randint(5, 60), victim)
                seconds.append(took)
                shown = ", ".join(f"{part} {part_s:.2f}" for part, part_s in parts.items())
                print(f"worker {victim} of attempt {attempt}: {took:.2f} s ({shown})", flush=True)
        finally:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
    print(f"RESULT restart_{args.kind}_s_max {max(seconds):.2f}")
    print(f"RESULT restart_s {statistics.median(seconds):.2f}")


if __name__ == "__main__":
    main()
