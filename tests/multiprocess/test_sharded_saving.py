"""Models sharded over several processes are saved and restored, also by another number of processes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import WorkersDisagreeError
from tests.multiprocess.test_sharded import keras_model, problem, read
from tests.multiprocess.workers import run_workers

pytestmark = pytest.mark.multiprocess


class Weights(keras.callbacks.Callback):
    """Reads all weights in each epoch, on all workers."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(float(sum(np.sum(weight) for weight in self.model.get_weights())))


class Assigns(keras.callbacks.Callback):
    """Assigns a sharded variable on one worker alone."""

    def __init__(self, assigns: bool):
        super().__init__()
        self.assigns = assigns

    def on_epoch_end(self, epoch, logs=None):
        if self.assigns:
            kernel = self.model.layers[0].kernel
            kernel.assign(np.full(kernel.shape, 2.0))


def compiled(strategy: rx.Strategy) -> keras.Model:
    with strategy.scope():
        model = keras_model()
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse")
        model.optimizer.build(model.trainable_variables)
    return model


def state(model: keras.Model) -> list[Any]:
    return read([*model.variables, *model.optimizer.variables])


def fit(model: keras.Model, epochs: int, **arguments: Any) -> dict[str, list[float]]:
    x, y = problem(40)
    return model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **arguments).history


def worker(folder: str) -> dict[str, Any]:
    strategy = rx.FullyShardedStrategy(min_size=8, start_timeout=60, stall_timeout=60)
    found: dict[str, Any] = {}

    # A checkpoint and files of one process come in.
    model = compiled(strategy)
    checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer)
    checkpoint.restore(f"{folder}/alone/checkpoint")
    found["restored"] = state(model)
    model = compiled(strategy)
    model.load_weights(f"{folder}/alone.weights.h5")
    found["loaded"] = state(model)

    weights, best = Weights(), keras.callbacks.EarlyStopping(monitor="loss", restore_best_weights=True)
    callbacks = [
        keras.callbacks.ModelCheckpoint(f"{folder}/made/{{epoch}}.weights.h5", save_weights_only=True),
        keras.callbacks.BackupAndRestore(f"{folder}/backup", delete_checkpoint=False),
        weights,
        best,
    ]
    fit(model, 2, callbacks=callbacks)
    found["fitted"], found["seen"] = state(model), weights.seen
    found["is_sharded"] = not model.variables[0].value.is_fully_replicated
    found["shown"] = repr(model.variables[0])

    model.save(f"{folder}/whole.keras")
    model.save_weights(f"{folder}/whole.weights.h5")
    checkpoint = rx.Checkpoint(model=model, optimizer=model.optimizer)
    with rx.CheckpointManager(f"{folder}/managed", checkpoint=checkpoint) as manager:
        manager.save(1)
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape))
    model.set_weights([np.ones(weight.shape, "float32") for weight in model.weights])
    fit(model, 1)
    checkpoint.restore(manager.latest_checkpoint)
    found["back"] = state(model)
    resumed = compiled(strategy)
    found["resumed"] = fit(resumed, 3, callbacks=[keras.callbacks.BackupAndRestore(f"{folder}/backup")])
    found["resumed state"] = state(resumed)
    with strategy.scope():
        found["opened"] = state(keras.models.load_model(f"{folder}/whole.keras"))
    with pytest.raises(rx.errors.ArgumentError, match="histogram_freq"):
        fit(model, 1, callbacks=[keras.callbacks.TensorBoard(f"{folder}/board", histogram_freq=1)])
    fit(model, 1, callbacks=[Assigns(strategy.is_chief)])
    found["the chief's"] = np.asarray(model.layers[0].kernel).tolist()
    with pytest.raises(WorkersDisagreeError, match="worker:1 alone"):
        fit(model, 1, callbacks=[Assigns(not strategy.is_chief)])
    return found


def assert_equal(found: list[Any], expected: list[Any], tolerance: float = 0.0) -> None:
    assert len(found) == len(expected)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.nightly
def test_what_one_process_saves_many_restore_and_back(tmp_path: Path):
    alone = compiled(rx.FullyShardedStrategy(min_size=8))
    fit(alone, 1)
    begun = state(alone)
    alone.save_weights(tmp_path / "alone.weights.h5")
    rx.Checkpoint(model=alone, optimizer=alone.optimizer).write(tmp_path / "alone/checkpoint")
    first, second = run_workers(worker, 2, 4, timeout=180, folder=str(tmp_path))
    assert first == second
    assert_equal(first["restored"], begun)
    assert_equal(first["loaded"], begun)
    assert first["is_sharded"]
    assert "value" not in first["shown"]
    fit(alone, 2)
    assert_equal(first["fitted"], state(alone), 1e-5)
    for name in ("back", "opened"):
        assert_equal(first[name], first["fitted"])
    assert len(first["seen"]) == 2
    assert len(first["resumed"]["loss"]) == 1

    # What they saved comes back here.
    fresh = compiled(rx.FullyShardedStrategy(min_size=8))
    fresh.load_weights(tmp_path / "whole.weights.h5")
    assert_equal(state(fresh), first["fitted"])
    fresh = compiled(rx.OneDeviceStrategy("cpu:0"))
    restored = rx.Checkpoint(model=fresh, optimizer=fresh.optimizer)
    restored.restore(rx.CheckpointManager(tmp_path / "managed", checkpoint=restored).latest_checkpoint)
    assert_equal(state(fresh), first["fitted"])
    assert sorted(path.name for path in (tmp_path / "made").iterdir()) == ["1.weights.h5", "2.weights.h5"]
    fit(fresh, 1)
    assert_equal(first["resumed state"], state(fresh), 1e-5)
    assert np.all(np.array(first["the chief's"]) == 2)
    assert not list(tmp_path.rglob("*.saving-*"))
