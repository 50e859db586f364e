"""Strikes an elastic job of four workers at random, and proves that its training ends as if nothing had been.

    python tests/soak/elastic.py --faults 200 [--seed 0] [--fit] [--hosts] [--log-dir DIR]

`replicax run --elastic 2:4` starts the workers, and lost ones again. They are killed, stopped for longer than the stall
time-out, cut off (each worker has a network namespace of its own, where root allows that) and preempted: at the start,
while all is well, two at once, while the others recover, while a replacement joins, and near the end. Then the logs are
read: each row of each step has counted exactly once, no two groups have gone on, the survivors have kept their
processes, and the parameters are those of one undisturbed process that saw the same global batches.

With `--hosts` each worker runs at a server, a real node of Ray on this machine. No cable is cut then; instead servers
are killed, all but the first, and come back after a while.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from replicax.checks import environment_names  # noqa: E402
from replicax.errors import WorkersFailedError  # noqa: E402
from replicax.testing import ElasticJob, why_no_cables  # noqa: E402
from tests.soak import elastic_history as history  # noqa: E402
from tests.soak.elastic_faults import FEWEST, STALL_S, WORKERS, Striker  # noqa: E402
from tests.soak.elastic_hosts import TOKEN, Servers  # noqa: E402
from tests.soak.elastic_training import end_after  # noqa: E402
from tests.soak.marked import marked  # noqa: E402

PAUSE_S = 0.05
_STEPS_MORE = 60
_SECONDS_TO_END = 90.0
_MARK = "REPLICAX_ELASTIC_SOAK"


def job_environment() -> dict[str, str]:
    """Returns the additions to the environment of the job."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    stacks = {"PYTHONFAULTHANDLER": "1"}  # A worker that hangs is aborted, and its log says where it was.
    return {"PYTHONPATH": paths, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", _MARK: str(os.getpid()), **stacks}


def disturbed(folder: Path, script: Path, args: argparse.Namespace, kinds: tuple[str, ...]) -> tuple[Striker, bool]:
    """Runs the job and strikes it; returns what has struck it, and whether it has ended well."""
    chance, deadline = random.Random(args.seed), time.monotonic() + args.limit
    servers, environment = None, job_environment()
    if args.hosts:
        of_workers = {**os.environ, **environment, environment_names.STALL_TIMEOUT: str(STALL_S)}
        servers = Servers(WORKERS, folder, of_workers)
        environment[environment_names.TOKEN] = TOKEN
    job = ElasticJob(
        script, folder, PAUSE_S, workers=WORKERS, min_workers=FEWEST, stall_timeout=STALL_S, environment=environment,
        log_dir=folder / "logs", cables="cut" in kinds, options=servers.options if servers is not None else (),
    )  # fmt: skip
    striker = Striker(job, folder, chance, kinds, servers)
    code = None
    with contextlib.closing(servers) if servers is not None else contextlib.nullcontext(), job:
        try:
            striker.strike_at_start()
            while len(striker.faults) < args.faults - 1 and time.monotonic() < deadline:
                striker.strike(args.faults - 1 - len(striker.faults))
            striker.await_all()
            end_after(folder, max(line.step for line in striker.last_lines().values()) + _STEPS_MORE)
            striker.strike_at_end()
            code = job.wait(_SECONDS_TO_END)
        except WorkersFailedError as error:
            striker.hangs += error.timed_out and not striker.hangs
            print(error, flush=True)
        finally:
            striker.close()
        if code not in (0, None):
            print(job.output[-6000:])
    return striker, code == 0


def undisturbed(folder: Path, script: Path, steps: int) -> dict[str, np.ndarray]:
    """Returns the end of the same training in one process."""
    folder.mkdir()
    end_after(folder, steps)
    command = [sys.executable, str(script), str(folder), "0"]
    subprocess.run(command, env={**os.environ, **job_environment()}, check=True, timeout=600)
    return load(folder / "result-0.npz")


def load(path: Path) -> dict[str, np.ndarray]:
    """Returns what `elastic_training.keep_result` has written."""
    with np.load(path) as found:
        return dict(found)


def difference(results: Sequence[dict[str, np.ndarray]], expected: dict[str, np.ndarray]) -> float:
    """Returns the largest difference of a parameter, in parts of the largest value of its variable."""
    largest = 0.0 if results else math.nan
    for found in results:
        for name in (name for name in expected if name.startswith("parameter")):
            scale = float(np.abs(expected[name]).max()) or 1.0
            largest = max(
                largest, float(np.abs(found[name].astype(float) - expected[name].astype(float)).max()) / scale
            )
    return largest


def report(folder: Path, script: Path, striker: Striker, ended_well: bool, args: argparse.Namespace) -> bool:
    """Reads the logs and prints the results; returns whether all is well."""
    time.sleep(1.0)
    left, lines = len(marked(f"{_MARK}={os.getpid()}")), history.read_lines(folder)
    results = [load(path) for path in sorted(folder.glob("result-*.npz"))]
    steps = int(results[0]["steps"]) if results else 0
    wrong = history.wrong_rows(lines, [each["counts"] for each in results], steps, args.fit)
    split = history.split_brains(lines)
    lost = history.strangers_lost(history.Membership.read(folder / "logs"), striker.faults, lines)
    largest = difference(results, undisturbed(folder / "undisturbed", script, steps)) if results else math.nan
    seconds = []
    for number, fault in enumerate(striker.faults, 1):
        found = history.recovery_s(fault, lines, striker.faults)
        waited = history.waited_s(fault, found or 0.0, striker.faults, STALL_S)
        shown = "in no world" if found is None else f"{found:.2f} s, {waited:.2f} s of them the stall time-out"
        print(f"{number}: {fault.kind} ({fault.moment}) of worker {fault.run.worker}, life {fault.run.life}: {shown}")
        seconds += [] if found is None else [found - waited]
    for each in [*wrong[:20], *split[:20], *(f"{run} was lost without a fault" for run in lost)]:
        print(f"WRONG {each}")
    survived = min(striker.survived, args.faults) if ended_well else striker.survived
    longest, median = (max(seconds), statistics.median(seconds)) if seconds else (math.nan, math.nan)
    threads, memory = history.grown(lines)
    print(f"RESULT elastic_threads_grown {threads:.2f}\nRESULT elastic_mib_grown {memory:.2f}")
    print(f"RESULT elastic_steps {steps}\nRESULT elastic_faults_survived {survived}")
    print(f"RESULT elastic_hangs {striker.hangs}\nRESULT elastic_split_brains {len(split)}")
    print(f"RESULT elastic_rows_lost_or_repeated {len(wrong)}\nRESULT elastic_parameter_difference {largest:.1e}")
    print(f"RESULT elastic_recovery_s_median {median:.2f}\nRESULT elastic_recovery_s_max {longest:.2f}")
    print(f"RESULT elastic_same_pids {int(not lost)}\nRESULT processes_left {left}", flush=True)
    exact = not wrong and not split and largest <= 1e-6
    return ended_well and exact and survived >= args.faults and not striker.hangs and not lost and not left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="those that may strike; by default kill,stop,preempt and cut, or node")
    parser.add_argument("--hosts", action="store_true", help="run the workers at servers, as nodes of Ray")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds after which no more faults come")
    parser.add_argument("--fit", action="store_true", help="train with Model.fit")
    parser.add_argument("--log-dir", type=Path, help="a new folder that is kept")
    args = parser.parse_args()
    usual = f"kill,stop,preempt,{'node' if args.hosts else 'cut'}"
    kinds, problem = tuple((args.kinds or usual).split(",")), why_no_cables()
    if problem and "cut" in kinds:
        print(f"No cable is cut: {problem}")
        kinds = tuple(kind for kind in kinds if kind != "cut")
    script = Path(__file__).with_name("elastic_fit_job.py" if args.fit else "elastic_job.py")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.log_dir or Path(temporary) / "job"
        folder.mkdir(parents=True)
        striker, ended_well = disturbed(folder.absolute(), script, args, kinds)
        return 0 if report(folder, script, striker, ended_well, args) else 1


if __name__ == "__main__":
    sys.exit(main())
