"""Workers that are killed, and join the others again: the same numbers as in one undisturbed process."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import CheckpointManager
from tests.multiprocess import joining_job as job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]

undisturbed = functools.cache(job.undisturbed)


def survived(folder: Path, *faults: str) -> None:
    """Trains with faults, and compares what all workers have at the end with one undisturbed process."""
    expected = undisturbed()
    with rx.testing.ElasticJob(job.__file__, folder, *faults, workers=job.WORKERS, log_dir=folder / "logs") as run:
        assert run.wait(400) == 0, run.output
    for fault in faults:
        index, kind, _ = fault.split(":")
        assert (folder / f"{index}-{kind}").exists(), f"{fault} has not struck: {run.output}"
    for index in range(job.WORKERS):
        with np.load(folder / f"worker-{index}.npz") as own:
            assert sorted(own.files) == sorted(expected)
            for name, value in expected.items():
                if name == "last losses":  # One that has come late has seen fewer of them.
                    assert own[name].size
                    value = value[-own[name].size :]
                scale = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(own[name], value, rtol=0, atol=1e-6 * scale, err_msg=f"{index}: {name}")
    checkpoints = folder / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["00000032", "00000036", "00000040"]
    again = job.Training(rx.OneDeviceStrategy("cpu:0"))
    again.optimizer.build(again.model.trainable_variables)
    assert CheckpointManager(checkpoints, checkpoint=again.checkpoint()).restore_or_initialize() == job.STEPS
    assert again.steps_made() == job.STEPS
    np.testing.assert_allclose(again.model.get_weights()[0], expected["variable 0"], rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_a_worker_that_was_killed_joins_again(tmp_path: Path):
    survived(tmp_path, "1:step:7")


@pytest.mark.nightly
def test_two_join_at_once_the_chief_among_them(tmp_path: Path):
    survived(tmp_path, "0:step:9", "2:step:9")


@pytest.mark.nightly
def test_the_giver_dies_in_the_middle_of_giving(tmp_path: Path):
    survived(tmp_path, "1:step:7", "any:gives:1")  # It is not certain which of the two others gives.


@pytest.mark.nightly
def test_a_newcomer_dies_in_the_middle_of_taking(tmp_path: Path):
    survived(tmp_path, "1:step:7", "1:takes:1")


@pytest.mark.nightly
def test_a_worker_takes_over_the_outcome_of_a_call_that_failed_here_alone(tmp_path: Path):
    survived(tmp_path, "1:fails:1", "2:fails:9", "0:fails:16")


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.nightly
def test_the_writer_of_a_checkpoint_dies_in_the_middle(tmp_path: Path, times: int):
    survived(tmp_path, f"0:writes:{times}")
