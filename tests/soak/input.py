"""Kills and resizes jobs that read sources of all kinds: `python tests/soak/input.py [--short]`.

A case is a kind of source, in order or shuffled, read by a chain of jobs. Each has so many workers, one of which kills
itself (SIGKILL) in the middle of the epoch; the next job goes on where the last written position is. Or it is an
elastic job, of whose three workers one kills itself several times, is replaced, and goes on. In the end the rows that
the steps had are put together.

Prints `RESULT input_cases`; `input_rows_lost` and `input_rows_repeated`; and `input_order_differs`: cases in which the
steps had other rows than those of a job that nothing disturbed. (That is asked for where access is random, where the
job is elastic, and of files where the number of workers stays.)
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("KERAS_BACKEND", "jax")

from replicax.data import InputOptions  # noqa: E402
from replicax.testing import ElasticJob  # noqa: E402
from tests.data.fake_workers import Team, parts, reading  # noqa: E402
from tests.data.row_kinds import OPEN, ROWS, WRITE  # noqa: E402
from tests.soak.input_job import KINDS, batches_of, state_file  # noqa: E402

SCRIPT = Path(__file__).with_name("input_job.py")
#: The numbers of workers in each job of a chain, whether it is shuffled, and after how many turns a worker dies.
CHAINS = [
    ((1, 1, 1), True, (5, 6)),
    ((2, 2), True, (7,)),
    ((2, 2, 2), False, (4, 5)),
    ((3, 3), True, (6,)),
    ((1, 2, 3), True, (5, 4)),
    ((3, 2, 1), True, (3, 4)),
    ((2, 1, 3), False, (6, 3)),
]
LIMIT_S = 300


def environment() -> dict[str, str]:
    """Returns the environment of the jobs."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}


def run_chain(folder: Path, chain: tuple[int, ...], shuffled: bool, kills: tuple[int, ...]) -> None:
    """Runs the jobs of a chain; all but the last are killed."""
    for workers, kill in zip(chain, (*kills, 0), strict=True):
        began = time.monotonic()
        command = [sys.executable, "-m", "replicax", "run", "--workers", str(workers), str(SCRIPT), str(folder)]
        command += ["shuffled" if shuffled else "in-order", str(kill)]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
        print(f"  {workers} worker(s): exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        if (done.returncode == 0) is (kill > 0):
            raise SystemExit(f"{done.stdout[-6000:]}\n{done.stderr[-3000:]}\nThe job should have ended otherwise.")


def undisturbed(kind: str, folder: Path, shuffled: bool, workers: int) -> list[list[int]]:
    """Returns the rows of each step where nothing happens, by workers that are threads here."""
    batches, options = batches_of(kind, folder, shuffled), InputOptions()
    found = Team([1] * workers).steps(reading([batches] * workers, options), options)
    return [[row for part in step or () for row in part] for step in parts(found)]


def flat(steps: list[list[Any]]) -> list[list[int]]:
    """Returns the rows of each step; packed ones have a place for each of several, -1 where there is none."""
    return [[int(row) for row in np.ravel(step) if row >= 0] for step in steps]


class Counts:
    """What all cases came to."""

    def __init__(self) -> None:
        self.cases = self.lost = self.repeated = self.differs = 0

    def add(self, what: str, steps: list[list[int]], expected: list[list[int]] | None) -> None:
        """Counts a case."""
        steps, expected = flat(steps), None if expected is None else flat(expected)
        rows = collections.Counter(row for step in steps for row in step)
        lost, repeated = ROWS - len(rows), sum(rows.values()) - len(rows)
        differs = expected is not None and steps != expected
        self.cases += 1
        self.lost += lost
        self.repeated += repeated
        self.differs += differs
        if lost or repeated or differs:
            print(f"WRONG {what}: {lost} lost, {repeated} repeated, {'another order' * differs}")


def run_elastic(folder: Path, shuffled: bool) -> dict[str, list[list[int]]]:
    """Runs an elastic job; returns the rows of each step of each source."""
    job = ElasticJob(
        SCRIPT, folder, "shuffled" if shuffled else "in-order", 0, workers=3, min_workers=1,
        environment={"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"},
    )  # fmt: skip
    with job:
        code = job.wait(LIMIT_S)
    if code != 0:
        raise SystemExit(f"{job.output[-6000:]}\nThe elastic job ended with {code}.")
    steps: dict[str, dict[int, list[int]]] = collections.defaultdict(dict)
    lives = 0
    for path in folder.glob("rows-*.jsonl"):
        lives += 1
        for line in path.read_text().splitlines():
            kind, step, rows = json.loads(line)
            if steps[kind].setdefault(step, rows) != rows:
                raise SystemExit(f"{kind}: workers had different rows in step {step}: {rows}, {steps[kind][step]}.")
    print(f"  {lives} processes", flush=True)
    return {kind: [found[step] for step in sorted(found)] for kind, found in steps.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--elastic", action="store_true", help="the elastic jobs alone")
    parser.add_argument("--short", action="store_true", help="two chains, and no elastic job")
    options = parser.parse_args()
    counts = Counts()
    with tempfile.TemporaryDirectory() as made:
        for kind in OPEN:
            folder = Path(made) / "data" / kind.replace(" ", "-")
            folder.mkdir(parents=True)
            WRITE.get(kind, lambda _: None)(folder)
        for chain, shuffled, kills in () if options.elastic else CHAINS[1:6:3] if options.short else CHAINS:
            print(f"{chain}, {'shuffled' if shuffled else 'in order'}", flush=True)
            folder = Path(made) / f"job-{chain}-{shuffled}"
            folder.mkdir()
            (folder / "data").symlink_to(Path(made) / "data")
            run_chain(folder, chain, shuffled, kills)
            for kind in KINDS:
                steps = json.loads(state_file(folder, kind).read_text())["steps"]
                batches = batches_of(kind, folder, shuffled)
                same = len(set(chain)) == 1 or batches.files is None or batches.makes_all
                expected = undisturbed(kind, folder, shuffled, chain[0]) if same else None
                counts.add(f"{kind}, {chain}, {shuffled}", steps, expected)
        for shuffled in () if options.short else (True, False):
            print(f"elastic, {'shuffled' if shuffled else 'in order'}", flush=True)
            folder = Path(made) / f"elastic-{shuffled}"
            folder.mkdir()
            (folder / "data").symlink_to(Path(made) / "data")
            for kind, steps in run_elastic(folder, shuffled).items():
                counts.add(f"{kind}, elastic, {shuffled}", steps, undisturbed(kind, folder, shuffled, 1))
    print(f"RESULT input_cases {counts.cases}")
    print(f"RESULT input_rows_lost {counts.lost}")
    print(f"RESULT input_rows_repeated {counts.repeated}")
    print(f"RESULT input_order_differs {counts.differs}")
    return int(bool(counts.lost or counts.repeated or counts.differs))


if __name__ == "__main__":
    raise SystemExit(main())
