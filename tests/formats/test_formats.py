"""Files that an earlier version wrote are read: those in `written/` are of commit 4ab275c (`write.py`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import replicax as rx
from replicax.cli.job_file import read_job_file
from replicax.job.membership_history import read_history
from tests.formats.write import X, Y, model_of

WRITTEN = Path(__file__).parent / "written"
EXPECTED = json.loads((WRITTEN / "expected.json").read_text())


def close(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other, np.float32), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "make", [lambda: rx.OneDeviceStrategy("cpu:0"), lambda: rx.FullyShardedStrategy(["cpu:0", "cpu:1"])]
)
def test_a_checkpoint(tmp_path, make):
    shutil.copytree(WRITTEN / "checkpoints", tmp_path / "checkpoints")
    strategy = make()
    model = model_of(strategy)
    with strategy.scope():
        counter = rx.Variable(0, name="counter")
        model.optimizer.build(model.trainable_variables)
    note = {"text": "", "numbers": [0, 0.0]}
    with iter(strategy.distribute_dataset((X, Y), batch_size=4)) as batches:
        checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer, counter=counter, data=batches, note=note)
        with rx.CheckpointManager(checkpoint, tmp_path / "checkpoints") as manager:
            assert manager.restore_or_initialize() == 5
        close(model.get_weights(), EXPECTED["weights"])
        close(model.optimizer.variables, EXPECTED["optimizer"])
        assert int(counter) == 7
        assert checkpoint.note == {"text": "held", "numbers": [1, 2.5]}
        (rest,) = list(batches)  # One of two batches had been taken.
        rows = np.concatenate([np.asarray(each) for each in strategy.local_results(rest[0])])
        np.testing.assert_array_equal(rows, X[4:])


@pytest.mark.parametrize("devices", [1, 2])
def test_an_export(devices):
    mesh = rx.dtensor.create_mesh([("replica", devices)], devices=[f"cpu:{i}" for i in range(devices)])
    function = rx.load_export(WRITTEN / "export", mesh=mesh) if devices > 1 else rx.load_export(WRITTEN / "export")
    close([function(X)], [EXPECTED["predictions"]])


def test_weights_in_safetensors():
    model = model_of(rx.OneDeviceStrategy("cpu:0"))
    rx.weights.load_safetensors(model, WRITTEN / "weights.safetensors")
    close(model.get_weights(), EXPECTED["weights"])


def test_a_job_file():
    options = dict.fromkeys(("script", "workers", "elastic", "restarts", "arguments"), False)
    assert read_job_file(WRITTEN / "job.yaml", options) == {
        "script": "train.py",
        "workers": "2",
        "elastic": "1:3",
        "restarts": "2",
        "arguments": ["--rate 1e-3"],
    }


def test_a_membership_log():
    history = read_history(WRITTEN / "log")
    assert len(history.runs) == 3
    assert len(history.memberships) == 3
    assert any("killed by signal 9" in change.text for change in history.changes)
