"""Starts jobs with large variables on a busy machine, again and again, and counts the alarms: there must be none.

    python tests/soak/start.py [--starts 30] [--seed 0] [--stall-timeout 5]

Each job is two workers under `replicax run` that make 1 to 200 MB of variables, wait for longer than the time-out, make
some more, and train a few steps. Threads of this process keep the processors busy meanwhile. The time-out is short: the
values are on their way for longer than that, which is no reason for an alarm.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

JOB = Path(__file__).with_name("start_job.py")
LONGEST_S = 150.0  # for one start; longer is a hang
MEGABYTES = (1, 10, 40, 100, 200)


def spin(until: float) -> None:
    while time.monotonic() < until:
        pass


@contextlib.contextmanager
def load(processes: int, longest_s: float) -> Iterator[None]:
    """Keeps so many processors busy until the end of the block, at most for so long."""
    context = multiprocessing.get_context("spawn")
    spinning = [context.Process(target=spin, args=(time.monotonic() + longest_s,)) for _ in range(processes)]
    for process in spinning:
        process.start()
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.join()


def start(folder: Path, megabytes: int, tensors: int, stall_timeout: float) -> tuple[int | None, str]:
    """Runs one job; returns its exit code, None if it hung, and what it printed."""
    environment = {
        **os.environ,
        "REPLICAX_STALL_TIMEOUT": str(stall_timeout),
        "REPLICAX_SLOW_TIMEOUT": "120",
        "KERAS_BACKEND": "jax",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
    }
    command = [sys.executable, "-m", "replicax", "run", "--workers", "2", "--log-dir", str(folder / "logs"), str(JOB)]
    command += [str(megabytes), str(tensors), str(stall_timeout)]
    output = folder / "output.txt"
    with output.open("w") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        code: int | None = process.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        code = None
        process.kill()
        process.wait()
    return code, output.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stall-timeout", type=float, default=5.0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    alarms = failures = hangs = 0
    longest = 0.0
    with tempfile.TemporaryDirectory() as name, load(os.cpu_count() or 1, args.starts * LONGEST_S):
        for number in range(args.starts):
            megabytes, tensors = MEGABYTES[-1 - number % len(MEGABYTES)], chance.choice((1, 4, 16))
            begin = time.monotonic()
            code, output = start(Path(name), megabytes, tensors, args.stall_timeout)
            took = time.monotonic() - begin
            alarmed = "the job stands still" in output
            alarms, hangs = alarms + alarmed, hangs + (code is None)
            failures += code not in (0, None) and not alarmed
            values = max([float(found) for found in re.findall(r"values took ([\d.]+)", output)], default=0.0)
            longest = max(longest, values)
            print(f"{number + 1}: {megabytes} MB in {tensors} variables: code {code}, {values:.1f} s of {took:.1f} s")
            sys.stdout.flush()
            if code != 0:
                print(output[-4000:])
    print(f"RESULT starts {args.starts}")
    print(f"RESULT longest_values_s {longest:.1f}")
    print(f"RESULT hangs {hangs}")
    print(f"RESULT other_failures {failures}")
    print(f"RESULT false_alarms {alarms}")
    return 1 if alarms or failures or hangs else 0


if __name__ == "__main__":
    sys.exit(main())
