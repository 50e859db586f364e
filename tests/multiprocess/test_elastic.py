"""The short form of `tests/soak/elastic.py`: three workers are killed, preempted and stopped, and nothing is lost."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from replicax.errors import ArgumentError
from replicax.testing import ElasticJob, why_no_cables
from tests.soak import elastic as soak, elastic_history as history
from tests.soak.elastic_history import Fault
from tests.soak.elastic_training import end_after

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]
JOB = Path(soak.__file__).with_name("elastic_job.py")
WORKERS, STALL_S, SECONDS = 3, 10.0, 120.0
_STEPS_MORE = 40


class Struck(ElasticJob):
    """A job whose faults are noted.

    Args:
        folder: Where its workers log their steps.
        script: The job.
        cables: Whether each worker has a network of its own.
    """

    def __init__(self, folder: Path, script: Path = JOB, cables: bool = False):
        super().__init__(
            script, folder, 0.02, workers=WORKERS, min_workers=1, stall_timeout=STALL_S,
            environment=soak.job_environment(), log_dir=folder / "logs", cables=cables,
        )  # fmt: skip
        self.folder = folder
        self.faults: list[Fault] = []

    def step(self) -> int:
        return max((line.step for line in history.read_last(self.folder).values()), default=-1)

    def all_train(self) -> None:
        """Waits until all workers have completed some steps together from now on."""
        since = time.time()

        def found() -> bool:
            lines = history.read_last(self.folder)
            return len(lines) == WORKERS and all(
                line.time > since and len(line.members) == WORKERS and line.run == self.membership.running.get(worker)
                for worker, line in lines.items()
            )

        self.wait_until(found, "a step of all workers", SECONDS)

    def strike(self, kind: str, *workers: int) -> None:
        """Strikes some workers, and waits until their places are taken again."""
        self.all_train()
        before = self.membership.worlds[-1].number
        now = time.time()
        for worker in workers:
            self.faults.append(Fault(kind, "steady", getattr(self, kind)(worker), now))
        self.wait_for_world(WORKERS - len(workers), SECONDS, after=before)
        if kind == "cut":
            for worker in workers:
                self.mend(worker)
        self.all_train()

    def check(self, fit: bool = False) -> None:
        """Ends the job, and checks that it has counted each row once, and ends where an undisturbed one does."""
        end_after(self.folder, self.step() + _STEPS_MORE)
        assert self.wait(SECONDS) == 0, self.output
        lines = history.read_lines(self.folder)
        results = [soak.load(path) for path in self.folder.glob("result-*.npz")]
        steps = int(results[0]["steps"])
        assert len(results) == WORKERS
        assert history.wrong_rows(lines, [each["counts"] for each in results], steps, fit) == []
        assert history.split_brains(lines) == []
        assert history.strangers_lost(self.membership, self.faults, lines) == []
        expected = soak.undisturbed(self.folder / "undisturbed", self._script, steps)
        assert soak.difference(results, expected) <= 1e-6
        assert not np.array_equal(expected["parameter3"], np.zeros_like(expected["parameter3"]))


@pytest.mark.parametrize(
    "strikes",
    [
        pytest.param([("kill", 0)], id="the chief"),
        pytest.param(
            [("kill", 0), ("preempt", 2), ("kill", 1, 2)], id="one after the other", marks=pytest.mark.nightly
        ),
    ],
)
def test_survivors_go_on_and_others_take_the_places_of_the_lost(tmp_path: Path, strikes):
    with Struck(tmp_path) as job:
        for strike in strikes:
            job.strike(*strike)
        with pytest.raises(ArgumentError, match="Worker 7 does not run now"):
            job.kill(7)
        job.check()


@pytest.mark.nightly  # It waits for the stall time-out.
@pytest.mark.parametrize("kind", ["stop", "cut"])
def test_one_that_gives_no_sign_of_life_is_left_out(kind: str, tmp_path: Path):
    if kind == "cut" and why_no_cables():
        pytest.skip(str(why_no_cables()))
    with Struck(tmp_path, cables=kind == "cut") as job:
        job.strike(kind, 1)
        job.check()


@pytest.mark.nightly
def test_fit_goes_on(tmp_path: Path):
    with Struck(tmp_path, JOB.with_name("elastic_fit_job.py")) as job:
        job.strike("kill", 0)
        job.strike("preempt", 1)
        job.check(fit=True)
