"""`Model.fit` while workers are killed and come again: the same parameters, logs and files as in one process."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from tests.multiprocess import elastic_fit_job as job

pytestmark = [pytest.mark.multiprocess, pytest.mark.slow]


def survived(folder: Path, way: str, *faults: str) -> None:
    """Trains with faults, and compares what all workers have at the end with one undisturbed process."""
    expected = job.undisturbed(way)
    with rx.testing.ElasticJob(job.__file__, folder, way, *faults, workers=job.WORKERS, log_dir=folder / "logs") as run:
        assert run.wait(400) == 0, run.output
    found = sorted(folder.glob("worker-*.npz"))
    lost = {fault.partition(":")[0] for fault in faults}
    incarnations = [f"worker-{index}-{int(str(index) in lost)}.npz" for index in range(job.WORKERS)]
    assert [each.name for each in found] == incarnations
    for each in found:
        with np.load(each) as own:
            assert sorted(own.files) == sorted(expected)
            for name, value in expected.items():
                scale = max(1.0, float(np.abs(value).max()))
                np.testing.assert_allclose(own[name], value, rtol=0, atol=1e-6 * scale, err_msg=f"{each.name}: {name}")
    with open(folder / "log.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in written] == list(range(job.EPOCHS))
    losses = [float(row["loss"]) for row in written]
    np.testing.assert_allclose(losses, expected["history loss"], rtol=1e-5)
    saved = sorted(path.name for path in (folder / "models").glob("*.keras"))
    assert saved == [f"epoch-{epoch + 1}.keras" for epoch in range(job.EPOCHS)]


@pytest.mark.nightly
def test_kills_of_the_chief_and_another_change_nothing(tmp_path: Path):
    survived(tmp_path, "arrays", "0:batch:13", "2:validation:5")


@pytest.mark.nightly
@pytest.mark.parametrize("way", [way for way in job.WAYS if way != "arrays"])
def test_so_it_is_with_any_data(tmp_path: Path, way: str):
    survived(tmp_path, way, "0:batch:8", "1:epoch:2")
