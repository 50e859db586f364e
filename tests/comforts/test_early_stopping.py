"""Early stopping over workers: all stop after the same epoch, with the weights and numbers of one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import replicax as rx
from tests.multiprocess.workers import run_workers

EPOCHS, PATIENCE = 12, 2
ROWS = 30  # An uneven share: two workers have no 8 rows each of the last batch.


def fitted(strategy: Any) -> dict[str, Any]:
    """Trains upwards, so that the first epoch is the best, and returns what has come of it."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(ROWS, 4)).astype(np.float32), rng.normal(size=(ROWS, 1)).astype(np.float32)
    y = x.sum(1, keepdims=True) + noise
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(optimizer=keras.optimizers.SGD(-0.01), loss="mse")
    stop = keras.callbacks.EarlyStopping("val_loss", patience=PATIENCE, restore_best_weights=True)
    history = model.fit(
        x, y, batch_size=8, epochs=EPOCHS, validation_data=(x[:7], y[:7]), callbacks=[stop], shuffle=False, verbose=0
    )
    return {
        "history": history.history,
        "stopped": stop.stopped_epoch,
        "best": stop.best_epoch,
        "weights": [np.asarray(variable).tolist() for variable in model.trainable_variables],
    }


def worker() -> tuple[int, dict[str, Any]]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    return strategy.num_replicas_in_sync, fitted(strategy)


@pytest.mark.nightly
def test_two_workers_stop_after_the_same_epoch_as_one_device():
    alone = fitted(rx.OneDeviceStrategy("cpu:0"))
    first, second = run_workers(worker, 2, 1, 100)
    assert first == second
    replicas, found = first
    assert replicas == 2
    assert found["stopped"] == alone["stopped"] == PATIENCE
    assert found["best"] == alone["best"] == 0
    assert len(found["history"]["loss"]) == PATIENCE + 1 < EPOCHS
    for name, values in alone["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-6, err_msg=name)
    for ours, wanted in zip(found["weights"], alone["weights"], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def custom_loop() -> list[int]:
    """Ends at the step in which the slower of two workers has had enough: its wish alone counts for both."""
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    for step in range(10):
        wants_to_stop = step == 3 and strategy.worker_index == 1
        votes = strategy.distribute_values_from_function(lambda _, wants=wants_to_stop: np.float32(wants))
        if strategy.reduce("SUM", votes) > 0:
            return [strategy.worker_index, step]
    return [strategy.worker_index, -1]


@pytest.mark.nightly
def test_a_loop_of_ones_own_stops_on_all_workers_when_one_wants_to():
    assert run_workers(custom_loop, 2, 1, 100) == [[0, 3], [1, 3]]
