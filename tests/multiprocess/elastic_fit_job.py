"""A script for `replicax run --elastic`: `Model.fit` in one of several ways, whose workers kill themselves on the way.

    python elastic_fit_job.py FOLDER WAY [INDEX:PLACE:NUMBER ...]

A worker of this index dies in its first life when it has come to a place for that time: `batch`, `validation`
or `epoch` (its end). From epoch `WAITS_IN` on there are all workers again.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

import replicax as rx
from replicax.contracts.group import current_group

ROWS, BATCH, EPOCHS, WAITS_IN, WORKERS = 125, 12, 6, 4, 3
_SECONDS_TO_WAIT = 240
WAYS: dict[str, dict[str, Any]] = {
    "arrays": {"validation_split": 0.2},
    "steps_per_epoch": {"validation_split": 0.2, "steps_per_epoch": 5},
    "several_steps": {"validation_split": 0.2},
    "eager": {"validation_split": 0.2},
    "generator": {"steps_per_epoch": 5},
    "dataset": {},
    "py_dataset": {"class_weight": {0: 1.0, 1: 2.0}},
}


def compiled_model(way: str) -> keras.Model:
    """Returns the model, with everything in it that draws random numbers or sums over the batch."""
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16, "tanh"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(1),
        ]
    )
    several = 2 if way == "several_steps" else 1
    model.compile("adam", "mse", metrics=["mae"], run_eagerly=way == "eager", steps_per_execution=several)
    return model


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns features and targets."""
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    return x, y


def generated() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches forever."""
    draw = np.random.default_rng(3)
    while True:
        x = draw.normal(size=(BATCH, 8)).astype(np.float32)
        yield x, x[:, :1]


class Batches(keras.utils.PyDataset):
    """Batches by index; Keras draws their order."""

    def __len__(self) -> int:
        return -(-ROWS // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = rows()
        return x[index * BATCH : (index + 1) * BATCH], y[index * BATCH : (index + 1) * BATCH]


def data_of(way: str, strategy: Any) -> dict[str, Any]:
    """Returns the arguments of `fit` that are its data."""
    if way == "generator":
        return {"x": generated()}
    if way == "py_dataset":
        return {"x": Batches(), "shuffle": True}
    if way == "dataset":
        batches = [Batches()[index] for index in range(len(Batches()))]
        return {"x": strategy.distribute_dataset(batches)}
    return dict(zip("xy", rows(), strict=True), batch_size=BATCH, shuffle=True)


def trained(way: str, strategy: Any, callbacks: Sequence[Any] = ()) -> dict[str, np.ndarray]:
    """Trains, and returns all that can be compared: parameters, history, results of evaluation and prediction."""
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = compiled_model(way)
    early = keras.callbacks.EarlyStopping("loss", patience=EPOCHS, restore_best_weights=True)
    slower = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=0.05)
    given = {**WAYS[way], **data_of(way, strategy)}
    history = model.fit(**given, epochs=EPOCHS, verbose=2, callbacks=[early, slower, *callbacks])
    x, y = rows()
    found = {
        **{f"variable {i}": np.asarray(each) for i, each in enumerate(model.variables)},
        **{f"slot {i}": np.asarray(each) for i, each in enumerate(model.optimizer.variables)},
        **{f"history {name}": np.asarray(values) for name, values in history.history.items()},
        "epochs": np.asarray(history.epoch),
        "best": np.asarray(early.best),
        "evaluated": np.asarray(model.evaluate(x, y, batch_size=BATCH, verbose=0)),
        "predicted": np.asarray(model.predict(x, batch_size=BATCH, verbose=0)),
    }
    return found


def undisturbed(way: str) -> dict[str, np.ndarray]:
    """Returns what one process without any cluster finds."""
    numpys, pythons = np.random.get_state(), random.getstate()

    try:
        return trained(way, rx.OneDeviceStrategy("cpu:0"))
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


class Faults(keras.callbacks.Callback):
    """Kills this process where the arguments say; and lets the others wait for its successor, later."""

    def __init__(self, strategy: Any, faults: Sequence[str]):
        super().__init__()
        self._strategy = strategy
        own = [fault.split(":") for fault in faults] if os.environ["REPLICAX_LIFE"] == "0" else []
        self._places = {place: int(number) for index, place, number in own if int(index) == int_index(strategy)}
        self._counts: dict[str, int] = {}

    def come_to(self, place: str) -> None:
        self._counts[place] = self._counts.get(place, 0) + 1
        if self._places.get(place) == self._counts[place]:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.come_to("batch")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self.come_to("validation")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.come_to("epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        group: Any = current_group()
        deadline = time.monotonic() + _SECONDS_TO_WAIT
        while epoch == WAITS_IN and self._strategy.num_workers + len(group._interrupter._waiting) < WORKERS:
            assert time.monotonic() < deadline, "a lost worker did not come again"
            time.sleep(0.1)


def int_index(strategy: Any) -> int:
    """Returns the stable index of this worker."""
    return int(strategy.cluster.process_id)


def main(folder: str, way: str, *faults: str) -> None:
    strategy = rx.MultiWorkerMirroredStrategy()
    at = Path(folder)
    callbacks = [
        keras.callbacks.CSVLogger(str(at / "log.csv")),
        keras.callbacks.ModelCheckpoint(str(at / "models" / "epoch-{epoch}.keras")),
        rx.keras.TensorBoard(str(at / "board"), update_freq=2),
        Faults(strategy, faults),
    ]
    found = trained(way, strategy, callbacks)
    np.savez(at / f"worker-{int_index(strategy)}-{os.environ['REPLICAX_LIFE']}.npz", **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
