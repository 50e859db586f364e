"""Trackers, used as on their page: what the real packages read back is what was logged, value by value."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tools.trackers.tracker as module
from replicax.errors import ArgumentError
from tests import events
from tests.comforts import reading

pytestmark = pytest.mark.nightly

LOGGED = {
    0: {"loss": jnp.float32(0.1), "rows": 32},
    1: {"loss": jnp.float32(1e-7)},
    5: {"loss": np.float64(1) / 3, "accuracy": jnp.ones((1,), "bfloat16")},
}
SETTINGS = {"learning_rate": 0.1, "name": "digits", "layers": 3, "model": {"width": 64, "bias": True}}
FLAT = {"learning_rate": 0.1, "name": "digits", "layers": 3, "model/width": 64, "model/bias": True}
SERIES = {
    "loss": [(0, float(np.float32(0.1))), (1, float(np.float32(1e-7))), (5, 1 / 3)],
    "rows": [(0, 32.0)],
    "accuracy": [(5, 1.0)],
}
X = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def no_service_of_wandb(monkeypatch):
    """Ends the process that wandb starts, which would serve the next test too."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    if "wandb" in sys.modules and "WANDB_SERVICE" in os.environ:
        sys.modules["wandb"].teardown()
        os.environ.pop("WANDB_SERVICE", None)


def csv_file(folder):
    return rx.trackers.CSV(folder / "log.csv"), lambda: reading.table(folder / "log.csv")


def tensorboard(folder):
    pytest.importorskip("tensorboardX")
    return rx.trackers.TensorBoard(folder), lambda: events.scalars(folder)


def wandb(folder):
    pytest.importorskip("wandb")
    tracker = rx.trackers.WandB("digits", id="abc", mode="offline", dir=str(folder), settings={"console": "off"})
    return tracker, lambda: reading.wandb_series(folder)


def mlflow(folder):
    pytest.importorskip("mlflow")
    uri = f"file:{folder}/runs"
    return rx.trackers.MLflow("digits", tracking_uri=uri), lambda: reading.mlflow_series(uri, "digits")


ALL = pytest.mark.parametrize("made", [csv_file, tensorboard, wandb, mlflow])


def rounded(series, made):
    """Returns series as the service stores them: TensorBoard's scalars are float32."""
    kind = np.float32 if made is tensorboard else float
    return {name: [(step, float(kind(value))) for step, value in values] for name, values in series.items()}


@ALL
def test_a_custom_loop_is_read_back(made, tmp_path):
    tracker, read = made(tmp_path)
    with tracker:
        tracker.log_hyperparameters(SETTINGS)
        for step, values in LOGGED.items():
            tracker.log(values, step)
    assert read() == rounded(SERIES, made)


@ALL
def test_a_tracker_that_was_closed_goes_on(made, tmp_path):
    tracker, read = made(tmp_path)
    for step, values in LOGGED.items():
        with tracker:
            tracker.log(values, step)
    assert read() == rounded(SERIES, made)


@ALL
def test_the_next_chief_goes_on(made, tmp_path, monkeypatch):
    """Two workers make the same calls; the first is the chief up to step 1, and then lost."""
    (first, read), (second, _) = made(tmp_path), made(tmp_path)
    for step, values in LOGGED.items():
        if step < 2:
            monkeypatch.setattr(module, "is_chief", lambda: True)
            first.log(values, step)
        else:
            first.close()
            if made is mlflow:  # as a user gives it to all workers
                second._id = first.run_id
        monkeypatch.setattr(module, "is_chief", lambda step=step: step >= 2)
        second.log(values, step)
    second.close()
    assert read() == rounded(SERIES, made)


@ALL
def test_fit_is_read_back(made, tmp_path):
    tracker, read = made(tmp_path)
    strategy = rx.MirroredStrategy()
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    batches = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batches.append(logs["loss"]))
    callbacks = [tracker.callback(every=2), note]
    history = model.fit(X, Y, batch_size=10, epochs=3, validation_split=0.2, verbose=0, callbacks=callbacks).history
    tracker.close()
    expected = {name: list(enumerate(values)) for name, values in history.items()}
    expected["batch_loss"] = [(step, batches[step - 1]) for step in range(2, len(batches) + 1, 2)]
    found = read()
    assert sorted(found) == sorted(expected)
    for name, values in rounded(expected, made).items():
        assert [step for step, _ in found[name]] == [step for step, _ in values]
        np.testing.assert_allclose([value for _, value in found[name]], [value for _, value in values], rtol=1e-6)


def settings_in_text(folder):
    text = events.text(folder, "hyperparameters")
    return json.loads(text.removeprefix("```json\n").removesuffix("```"))


def settings_in_mlflow(folder):
    (run,) = reading.mlflow_runs(f"file:{folder}/runs", "digits")
    assert run.info.status == "FINISHED"
    return run.data.params


SETTINGS_IN = {
    csv_file: lambda folder: json.loads((folder / "log.hyperparameters.json").read_text()),
    tensorboard: settings_in_text,
    wandb: reading.wandb_settings,
    mlflow: settings_in_mlflow,
}


@ALL
def test_hyperparameters_are_read_back(made, tmp_path):
    with made(tmp_path)[0] as tracker:
        tracker.log_hyperparameters(SETTINGS)
        tracker.log({"loss": 0.5}, 0)
    expected = {name: str(value) for name, value in FLAT.items()} if made is mlflow else FLAT
    assert SETTINGS_IN[made](tmp_path) == expected


@pytest.mark.parametrize("package", ["tensorboardX", "wandb", "mlflow"])
def test_a_missing_package_is_named(package, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    make = {"tensorboardX": tensorboard, "wandb": wandb, "mlflow": mlflow}[package]
    monkeypatch.setattr(pytest, "importorskip", lambda name: None)
    with pytest.raises(ArgumentError, match=rf"{package}.*pip install"):
        make(tmp_path)[0].log({"loss": 0.5}, 0)


def test_importing_replicax_imports_no_service():
    code = (
        "import sys, replicax as rx; rx.trackers.CSV('a.csv');"
        "print([name for name in ('wandb', 'mlflow', 'tensorboardX') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "[]"
