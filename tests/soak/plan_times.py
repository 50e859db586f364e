"""Compares the times that plans tell with those that steps take, on a machine that does nothing else.

It measures the machine as `replicax plan --calibrate` does. `plan_time_error` is the median error of the middle of a
plan's range, of steps on two and three processes. `plan_choice_loss` is how much longer than the fastest of six
measured ways of training the one takes that a search ranks first. `--short` shows that all of it runs: on a busy
machine its figures say nothing.

Usage: python tests/soak/plan_times.py [--short]
"""

from __future__ import annotations

import os

if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # Where libtpu is installed, JAX would look for TPUs first.

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import replicax as rx
from replicax.planning import Plan
from replicax.planning.calibration import calibrate
from replicax.planning.variations import Variation
from tests.soak.plan_times_job import train

_JOB = Path(__file__).with_name("plan_times_job.py")
_WORKERS = Variation("MultiWorkerMirroredStrategy")
_DEVICES = 8  # of a search
_MEASURED = 6  # ways that it has ranked
_TIMEOUT_S = 600.0


def _case(rows: int, width: int, layers: int, steps: int = 30) -> dict[str, int]:
    return {"rows": rows, "width": width, "layers": layers, "steps": steps}


CASES = [_case(rows, width, layers) for rows in (96, 768) for width, layers in ((256, 8), (1024, 2), (1536, 3))]
SHORT = [_case(48, 64, 2, steps=3)]


def seconds_of(case: Mapping[str, int], variation: Variation, processes: int, devices: int) -> float:
    """Returns the median of what a step takes, on so many devices of each of the processes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "seconds.json")
        told = json.dumps(dataclasses.asdict(variation))
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "replicax", "run", "--workers", str(processes), "--devices-per-worker", str(devices)]
        environ = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
        command += [str(_JOB), str(out), json.dumps(case), told]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=_TIMEOUT_S)
        assert done.returncode == 0, f"{command} has ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return float(json.loads(out.read_text()))


def middle(plan: Plan) -> float:
    """Returns the middle of the range that a plan tells."""
    assert plan.seconds is not None, plan
    return math.sqrt(plan.seconds[0] * plan.seconds[1])


def time_error(case: Mapping[str, int], processes: int) -> float:
    """Returns by which part of the measured time a planned one differs from it."""
    plan = rx.plan(train, tuple(case.values()), strategy=_WORKERS.make, on=f"cpu:{processes}", hosts=processes)
    planned, measured = middle(plan), seconds_of(case, _WORKERS, processes, 1)
    print(f"{case} on {processes} processes: planned {planned:.4f} s, measured {measured:.4f} s", flush=True)
    return abs(planned - measured) / measured


def choice_loss(case: Mapping[str, int], count: int) -> float:
    """Returns which part longer than the fastest the way takes that a search ranks first, of `count` measured ones."""
    ranked = [
        each for each in rx.plan.search(train, tuple(case.values()), on=f"cpu:{_DEVICES}").candidates if each.fits
    ]
    taken = []
    for each in ranked[:count]:
        assert each.plan is not None
        taken.append(seconds_of(case, each.variation, 1, _DEVICES))
        print(f"{case} in {each.variation}: planned {middle(each.plan):.4f} s, measured {taken[-1]:.4f} s", flush=True)
    return taken[0] / min(taken) - 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true")
    short = parser.parse_args().short
    with tempfile.TemporaryDirectory() as cache:  # What a busy machine can do is not kept for later plans.
        os.environ["XDG_CACHE_HOME"] = cache
        print(calibrate().table(), flush=True)
        _compare(short)


def _compare(short: bool) -> None:
    cases = SHORT if short else CASES
    errors = [time_error(case, processes) for case in cases for processes in ((2,) if short else (2, 3))]
    losses = [choice_loss(case, 2 if short else _MEASURED) for case in (cases if short else cases[::2])]
    print(f"RESULT plan_time_error {statistics.median(errors):.3f}")
    print(f"RESULT plan_choice_loss {max(losses):.3f}")


if __name__ == "__main__":
    main()
