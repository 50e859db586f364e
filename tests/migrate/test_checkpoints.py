"""What `tests/migrate/checkpoints.py` shows, fixture by fixture: a few by default, and all in `make test-all`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import replicax as rx
from tests.migrate import restored

ALL = [name for name in restored.names() if name not in restored.NOT_RESUMED]
RESUMED = [name for name in restored.names("steps.npz") if name not in restored.NOT_RESUMED]
SIX = ("adam", "momentum", "rmsprop", "adagrad", "adadelta", "ftrl")


def test_there_are_fixtures_of_each_optimizer_in_each_form():
    assert len(list(restored.FIXTURES.glob("*/fixture.json"))) >= 40
    forms = ("saver_{}", "opt_tf_keras_legacy_{}", "opt_tf_keras_new_{}", "opt_keras3_new_{}")
    assert not [form.format(name) for name in SIX for form in forms if form.format(name) not in RESUMED]


def test_fixtures_are_small():
    assert sum(path.stat().st_size for path in restored.FIXTURES.rglob("*") if path.is_file()) < 3e6


@pytest.mark.parametrize("name", ["keras3_functional", "tf_keras_embedding", "keras215_h5_nested"])
def test_a_model_is_restored(name):
    assert restored.output_difference(name, restored.restored(name)["model"]) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALL)
def test_each_model_is_restored(name):
    assert restored.output_difference(name, restored.restored(name)["model"]) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["mirrored-8", "fully-sharded-3", "central", "one"])
@pytest.mark.parametrize("name", RESUMED)
def test_each_training_goes_on(name, kind):
    strategies = {
        "mirrored-8": lambda: rx.MirroredStrategy([f"cpu:{i}" for i in range(8)]),
        "fully-sharded-3": lambda: rx.FullyShardedStrategy([f"cpu:{i}" for i in range(3)], min_size=1),
        "central": lambda: rx.CentralStorageStrategy([f"cpu:{i}" for i in range(2)]),
        "one": lambda: rx.OneDeviceStrategy("cpu:1"),
    }
    assert restored.resumed(name, strategies[kind]()) < 1e-5


@pytest.mark.slow
@pytest.mark.nightly
def test_the_script_prints_its_results():
    script = Path(__file__).with_name("checkpoints.py")
    command = [sys.executable, str(script), "--only", "opt_tf_keras_new_adag", "--mutations", "4", "--devices", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=dict(os.environ), check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = dict(line.split()[1:3] for line in done.stdout.splitlines() if line.startswith("RESULT "))
    assert results["checkpoints_total"] == "1"
    assert results["raw_errors"] == results["checkpoints_different"] == "0"
    assert float(results["resumed_step_difference"]) <= 1e-5


def test_every_fixture_says_what_wrote_it():
    for path in restored.FIXTURES.glob("*/fixture.json"):
        facts = json.loads(path.read_text())
        assert facts["written_by"].startswith("TensorFlow 2."), path
        assert facts["kind"], path
