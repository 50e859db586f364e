"""Strikes a job of three workers at random steps, again and again, and sees whether it ends as if nothing had been.

    python tests/soak/chaos.py --faults 20 [--seed 0] [--at-once 2]

Faults: SIGKILL, SIGSTOP and SIGTERM to a random worker (0 included), an input pipeline that blocks, a callback that
sleeps. Every third time two workers are struck at once. `replicax run --restarts` starts the job again from its newest
checkpoint. At the end the parameters must be exactly those of a run that nobody has disturbed, and no process may be
left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

JOB = Path(__file__).with_name("chaos_job.py")
WORKERS = 3
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "SIGTERM": signal.SIGTERM}
KINDS = (*SIGNALS, "input", "callback")
STALL_TIMEOUT_S = 4.0
SLOW_TIMEOUT_S = 45.0  # for compiling, saving and a first batch
LONGEST_WAIT_S = 120.0  # for a fault to be noticed, or the job to come back: then it is a hang


class Job:
    """One run of the job under `replicax run`.

    Args:
        folder: Where the workers tell how far they are.
        steps: Number of steps of the training.
        restarts: How often the launcher may start it again.
    """

    def __init__(self, folder: Path, steps: int, restarts: int):
        self.folder, self.steps = folder, steps
        folder.mkdir()
        environment = {
            **os.environ,
            "REPLICAX_STALL_TIMEOUT": str(STALL_TIMEOUT_S),
            "REPLICAX_SLOW_TIMEOUT": str(SLOW_TIMEOUT_S),
            "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "programs"),
            "JAX_ENABLE_COMPILATION_CACHE": "true",
        }
        command = [sys.executable, "-m", "replicax", "run", "--workers", str(WORKERS), "--restarts", str(restarts)]
        command += ["--grace", "3", "--log-dir", str(folder / "logs"), str(JOB), str(folder), str(steps)]
        with open(folder / "output.txt", "w") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def pids(self) -> list[int] | None:
        """Returns the workers' process ids, None if not all have told them yet."""
        found = []
        for worker in range(WORKERS):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads((self.folder / f"worker-{worker}.pid").read_text())["pid"])
        return found if len(found) == WORKERS else None

    def step(self) -> int:
        """Returns how far the workers are: the first of them."""
        done = 0
        for worker in range(WORKERS):
            with contextlib.suppress(OSError, ValueError):
                done = max(done, int((self.folder / f"worker-{worker}.step").read_text()))
        return done

    def resumed_from(self) -> int:
        return json.loads((self.folder / "worker-0.pid").read_text())["from"]

    def ended(self) -> bool:
        return self.process.poll() is not None

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def close(self) -> None:
        """Ends what is left of the job: nothing, if all is well."""
        if not self.ended():
            self.process.kill()
            self.process.wait()


def wait_for(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def strike(job: Job, kinds: dict[int, str]) -> tuple[int, list[int]]:
    """Makes workers fail; returns the step at which, and the processes of that time."""
    pids, step = job.pids(), job.step()
    assert pids is not None
    for worker, kind in kinds.items():
        if kind in SIGNALS:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[worker], SIGNALS[kind])
        else:
            (job.folder / f"worker-{worker}.fault").write_text(kind)
    return step, pids


def in_strikes(kinds: list[str], at_once: int) -> list[list[str]]:
    """Returns faults in the groups in which they strike: every third group has `at_once` of them."""
    strikes: list[list[str]] = []
    while kinds:
        size = at_once if len(strikes) % 3 == 1 else 1
        strikes.append(kinds[:size])
        kinds = kinds[size:]
    return strikes


class Chaos:
    """The faults, and what became of them."""

    def __init__(self, job: Job, faults: int, seed: int, at_once: int):
        self.job, self.random = job, random.Random(seed)
        kinds = [KINDS[i % len(KINDS)] for i in range(faults)]
        self.random.shuffle(kinds)
        self.strikes = in_strikes(kinds, at_once)
        # Not near the end: a fault must have steps left to strike.
        self.at = sorted(self.random.sample(range(10, job.steps - 30), len(self.strikes)))
        self.survived = self.hangs = 0
        self.detection, self.restart, self.lost = [], [], []
        self.seen: set[int] = set()

    def run(self) -> None:
        for kinds, step in zip(self.strikes, self.at, strict=True):
            if not wait_for(lambda step=step: self.job.ended() or self._is_running(step), LONGEST_WAIT_S):
                self.hangs += 1
                print(f"the job did not come to step {step}", flush=True)
                return
            if self.job.ended():
                return
            self._one(dict(zip(self.random.sample(range(WORKERS), len(kinds)), kinds, strict=True)))
        if not wait_for(self.job.ended, LONGEST_WAIT_S):
            self.hangs += 1

    def _is_running(self, step: int) -> bool:
        pids = self.job.pids()
        return pids is not None and not self.seen & set(pids) and self.job.step() >= step

    def _one(self, kinds: dict[int, str]) -> None:
        begin = time.monotonic()
        step, pids = strike(self.job, kinds)
        self.seen |= set(pids)
        others = [pid for i, pid in enumerate(pids) if i not in kinds]
        noticed = wait_for(lambda: self.job.ended() or not all(map(alive, others)), LONGEST_WAIT_S)
        self.detection.append(time.monotonic() - begin)
        back = noticed and wait_for(lambda: self.job.ended() or self._is_back(), LONGEST_WAIT_S)
        self.restart.append(time.monotonic() - begin - self.detection[-1])
        if not back:
            self.hangs += 1
        elif not self.job.ended():
            self.survived += len(kinds)
            self.lost.append(max(0, step - self.job.resumed_from()))
        struck = ", ".join(f"{kind} of worker {worker}" for worker, kind in kinds.items())
        print(
            f"{struck} at step {step}: noticed after {self.detection[-1]:.1f} s, "
            f"back after {self.restart[-1]:.1f} s more",
            flush=True,
        )

    def _is_back(self) -> bool:
        pids = self.job.pids()
        return pids is not None and not self.seen & set(pids)


def undisturbed(folder: Path, steps: int) -> dict:
    job = Job(folder, steps, restarts=0)
    wait_for(job.ended, 2 * LONGEST_WAIT_S)
    job.close()
    if not (folder / "final.json").exists():
        raise SystemExit(f"The undisturbed job failed:\n{job.output()}")
    return json.loads((folder / "final.json").read_text())


def left_over(folder: Path) -> int:
    """Returns how many processes of the jobs in a folder still run."""
    count = 0
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and str(folder).encode() in (process / "cmdline").read_bytes():
                count += int(process.name) != os.getpid()
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, choices=(1, 2))
    parser.add_argument("--steps", type=int, help="by default as many as the faults need")
    args = parser.parse_args()
    steps = args.steps or 60 + 25 * args.faults

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = undisturbed(folder / "undisturbed", steps)
        job = Job(folder / "struck", steps, restarts=2 * args.faults)
        chaos = Chaos(job, args.faults, args.seed, args.at_once)
        try:
            chaos.run()
        finally:
            job.close()
        final = job.folder / "final.json"
        found = json.loads(final.read_text()) if final.exists() else None
        time.sleep(1)
        processes = left_over(folder)
        if found is None or chaos.survived < args.faults:
            print(job.output()[-6000:])
    difference = float("nan") if found is None else np.abs(np.subtract(found["w"], expected["w"])).max()
    print(f"lost steps by fault: {chaos.lost}")
    print(f"RESULT faults_survived {chaos.survived}")
    print(f"RESULT hangs {chaos.hangs}")
    print(f"RESULT processes_left {processes}")
    print(f"RESULT final_parameter_difference {difference:.1e}")
    print(f"RESULT longest_detection_s {max(chaos.detection, default=float('nan')):.1f}")
    print(f"RESULT longest_lost_steps {max(chaos.lost, default=0)}")
    print(f"RESULT median_restart_s {statistics.median(chaos.restart) if chaos.restart else float('nan'):.1f}")
    healthy = chaos.survived == args.faults and not chaos.hangs and not processes and difference == 0.0
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main())
