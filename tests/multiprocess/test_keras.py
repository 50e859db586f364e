"""`Model.fit` on two workers with many callbacks: one set of files, the same decisions."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import WorkersDisagreeError
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess
ROWS, EPOCHS = 50, 8


def compiled_model(strategy: rx.Strategy) -> keras.Model:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    return model


def noisy(strategy: Any) -> keras.callbacks.Callback:
    """Tells the callbacks after it, on worker 1 only, that the loss has stopped falling."""

    def end(epoch: int, logs: dict[str, float]) -> None:
        if not strategy.is_chief:
            logs["loss"] = logs["val_loss"] = 100.0 + epoch

    return keras.callbacks.LambdaCallback(on_epoch_end=end)


def worker(folder: str) -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    at = Path(folder)
    model = compiled_model(strategy)
    np.random.seed(strategy.worker_index)  # each would shuffle in its own way
    callbacks = [
        noisy(strategy),
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        keras.callbacks.ModelCheckpoint(str(at / "epoch-{epoch}.keras")),
        keras.callbacks.CSVLogger(str(at / "log.csv")),
        keras.callbacks.BackupAndRestore(str(at / "backup"), delete_checkpoint=False),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.95),
        keras.callbacks.TerminateOnNaN(),
        rx.keras.TensorBoard(str(at / "board")),
    ]
    history = model.fit(x, y, batch_size=8, epochs=EPOCHS, validation_split=0.2, verbose=1, callbacks=callbacks)
    if strategy.is_chief:
        time.sleep(1)  # The other must not look for the file before it is there.
    model.save(at / "final.keras")
    loaded = keras.saving.load_model(at / "final.keras")
    result = {
        "loaded": [variable.numpy().tolist() for variable in loaded.trainable_variables],
        "epochs": len(history.history["loss"]),
        "rate": float(model.optimizer.learning_rate),
        "weights": [np.asarray(variable).tolist() for variable in model.trainable_variables],
        "predicted": np.asarray(model.predict(x, batch_size=7, verbose=1)).tolist(),
        "drawn": float(np.random.rand()),
    }
    result["error"] = _error_of_logs(model, strategy, x, y)
    return result


def _error_of_logs(model: keras.Model, strategy: Any, x: Any, y: Any) -> str:
    def end(epoch: int, logs: dict[str, float]) -> None:
        if strategy.is_chief:
            logs["only here"] = 1.0

    try:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=end)])
    except WorkersDisagreeError as error:
        return str(error)
    return ""


def test_two_workers_write_once_and_decide_alike(tmp_path: Path):
    first, second = run_workers(worker, 2, 1, 100, folder=str(tmp_path))
    drawn = [first.pop("drawn"), second.pop("drawn")]
    assert first == second
    assert first["epochs"] == EPOCHS, "only worker 1 had a reason to stop"
    assert len(first["predicted"]) == ROWS
    assert first.pop("loaded") == first["weights"]
    assert "worker:0 alone or with some others: only here" in first["error"]
    # Each worker's own generator goes on where it was.
    expected = []
    for index in range(2):
        np.random.seed(index)
        expected.append(float(np.random.rand()))
    assert drawn == expected
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == sorted(
        ["final.keras", *(f"epoch-{i + 1}.keras" for i in range(EPOCHS))]
    )
    assert (tmp_path / "log.csv").read_text().count("\n") == EPOCHS + 1
    assert len(list((tmp_path / "board" / "train").glob("events.*"))) == 1
    restored = keras.saving.load_model(tmp_path / "final.keras")
    for variable, wanted in zip(restored.trainable_variables, first["weights"], strict=True):
        np.testing.assert_allclose(np.asarray(variable), wanted, rtol=1e-6)
