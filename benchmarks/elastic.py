"""What elasticity costs without faults, and how much throughput is left with one fault each 30 seconds.

    python benchmarks/elastic.py [--workers 2] [--blocks 8] [--windows 3] [--window-s 30] [--only overhead|faults]

The step is one of two dense layers (1024 wide, 240 rows, 8 MB of gradients), which takes some 20 to 60 ms on two cores:
a smaller one would measure the work of the host that a step of any size has. Two figures:

- `elastic_overhead`: two jobs of the same script, one elastic and one not, make blocks of 20 steps in turns, while the
  other one waits. It is the median of the ratios of neighbouring blocks. Nothing waits for a step in a
  block, so the job without elasticity may prepare the next one meanwhile; the elastic one looks at the end of each.
- `elastic_throughput_kept`: one elastic job, undisturbed for a window of 30 s, then for another one in which a worker
  is killed after 5 s and started again, and so on. It is the ratio of the steps in both kinds of windows. The processes
  share the cores, so the start of the replacement costs throughput too, as it would not with a machine for each.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from replicax.testing import ElasticJob
from replicax.testing.elastic_job import Launcher

WORKER = Path(__file__).with_name("elastic_worker.py")
_BLOCK_STEPS = 20
_SECONDS_TO_START, _SECONDS_FOR_A_BLOCK = 120.0, 60.0
_SECONDS_BEFORE_THE_FAULT = 5.0
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu"}


def tell(folder: Path, name: str, number: int) -> None:
    """Tells all jobs whose turn it is."""
    unfinished = folder / "turn.new"
    unfinished.write_text(f"{name} {number}")
    unfinished.rename(folder / "turn")


def overhead(folder: Path, workers: int, blocks: int) -> tuple[list[float], list[float]]:
    """Returns the seconds per step of each block, with and without elasticity."""
    seconds: dict[str, list[float]] = {"elastic": [], "plain": []}
    command = [sys.executable, "-m", "replicax", "run", "--workers", str(workers), "--log-dir", str(folder / "plain")]
    command += [str(WORKER), str(folder), "plain", str(_BLOCK_STEPS)]
    with ElasticJob(
        WORKER, folder, "elastic", _BLOCK_STEPS, workers=workers, log_dir=folder / "elastic", environment=_ENVIRONMENT
    ) as job:
        plain = Launcher("plain", command, {**os.environ, **_ENVIRONMENT}, folder / "plain.txt")
        try:
            for number in range(blocks + 1):
                for name in ("elastic", "plain") if number % 2 else ("plain", "elastic"):
                    tell(folder, name, number)
                    path = folder / f"{name}-{number}.json"
                    wait_s = _SECONDS_FOR_A_BLOCK if number else _SECONDS_TO_START
                    (plain if name == "plain" else job).wait_until(path.exists, f"block {number} of {name}", wait_s)
                    seconds[name] += [json.loads(path.read_text())] if number else []
            tell(folder, "end", 0)
            job.wait(_SECONDS_FOR_A_BLOCK)
            plain.wait(_SECONDS_FOR_A_BLOCK)
        finally:
            plain.close()
    return seconds["elastic"], seconds["plain"]


def completed(folder: Path) -> dict[int, float]:
    """Returns for each step when the first worker had completed it."""
    found: dict[int, float] = {}
    for path in folder.glob("steps-*.jsonl"):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("]\n"):
                step, at = json.loads(line)
                found[step] = min(at, found.get(step, at))
    return found


def kept(folder: Path, workers: int, windows: int, window_s: float) -> tuple[float, float]:
    """Returns the steps per second of undisturbed windows and of those with a fault."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    with ElasticJob(WORKER, folder, "elastic", 0, workers=workers, log_dir=folder, environment=_ENVIRONMENT) as job:
        job.wait_for_world(workers, _SECONDS_TO_START)
        job.wait_until(lambda: len(completed(folder)) > 20, "20 steps", _SECONDS_TO_START)
        for number in range(2 * windows):
            began, disturbed = time.time(), number % 2 == 1
            if disturbed:
                time.sleep(_SECONDS_BEFORE_THE_FAULT)
                job.kill(number // 2 % workers)
            time.sleep(max(0.0, began + window_s - time.time()))
            until = time.time()
            steps = sum(began <= at < until for at in completed(folder).values())
            rates[disturbed].append(steps / (until - began))
            print(
                f"window {number + 1}, {'one fault' if disturbed else 'no fault'}: {rates[disturbed][-1]:.2f} steps/s"
            )
            if disturbed:
                job.wait_for_world(workers, _SECONDS_TO_START)
        tell(folder, "end", 0)
        job.wait(_SECONDS_FOR_A_BLOCK)
    return statistics.mean(rates[False]), statistics.mean(rates[True])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--windows", type=int, default=3, help="of each kind")
    parser.add_argument("--window-s", type=float, default=30.0)
    parser.add_argument("--only", choices=("overhead", "faults"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.only != "faults":
            folder = Path(name) / "overhead"
            folder.mkdir()
            elastic, plain = overhead(folder, args.workers, args.blocks)
            medians = [1e3 * statistics.median(each) for each in (plain, elastic)]
            print(f"a step takes {medians[0]:.1f} ms, in the elastic job {medians[1]:.1f} ms")
            ratio = statistics.median(one / other for one, other in zip(elastic, plain, strict=True))
            print(f"RESULT elastic_overhead {ratio:.3f}")
        if args.only != "overhead":
            folder = Path(name) / "faults"
            folder.mkdir()
            without, disturbed = kept(folder, args.workers, args.windows, args.window_s)
            print(f"{without:.2f} steps/s undisturbed, {disturbed:.2f} with one fault each {args.window_s:g} s")
            print(f"RESULT elastic_throughput_kept {disturbed / without:.3f}")


if __name__ == "__main__":
    main()
