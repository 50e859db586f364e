"""`Model.fit` on two workers with many callbacks: one set of files, the same decisions."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.errors import BatchError, ReplicaDriftError, WorkersDisagreeError
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


class Shuffled(keras.utils.PyDataset):
    """Rows in another order in every epoch."""

    def __init__(self, x: Any, y: Any):
        super().__init__()
        self.x, self.y, self.order = x, y, np.arange(len(x))

    def __len__(self) -> int:
        return len(self.x) // 10

    def __getitem__(self, index: int) -> Any:
        rows = self.order[10 * index : 10 * (index + 1)]
        return self.x[rows], self.y[rows]

    def on_epoch_end(self) -> None:
        np.random.shuffle(self.order)


def losses_of_fits(strategy: rx.Strategy | None) -> list[list[float]]:
    """Trains by one `fit` after the other, each of which shuffles; chiefs alone have the right seed."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    y, classes = x.sum(1, keepdims=True), (x[:, 0] > 0).astype(np.int32)
    weights = np.linspace(0.1, 2.0, ROWS).astype(np.float32)
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "relu"), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.02), loss="mse")
    if strategy is not None and strategy.worker_index:
        keras.utils.set_random_seed(1)
    ways: list[dict[str, Any]] = [
        *({"x": x, "y": y} for _ in range(3)),
        {"x": x, "y": classes, "class_weight": {0: 1.0, 1: 3.0}},
        {"x": x, "y": y, "sample_weight": weights, "validation_split": 0.2},
        {"x": Shuffled(x, y), "shuffle": True, "epochs": 3},
    ]
    sizes = {"batch_size": 8, "verbose": 0}
    logs = [model.fit(**way, **({"verbose": 0} if "epochs" in way else sizes)).history for way in ways]
    return [[loss for each in sorted(log) for loss in log[each]] for log in logs]


def numbered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields batches without an end; the labels of each are its number."""
    for number in itertools.count():
        yield np.ones((4, 1), np.float32), np.full((4, 1), number, np.float32)


def losses_of_generators(strategy: rx.Strategy | None) -> list[float]:
    """Returns what a model that predicts zeros finds in generators: the mean number of the batches that it gets."""
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        model.compile(keras.optimizers.SGD(0.0), "mae")
    generator = numbered()
    found = [model.evaluate(generator, steps=2, verbose=0) for _ in range(2)]
    model.predict(generator, steps=2, verbose=0)
    found.append(float(next(generator)[1][0, 0]))
    ends = {"validation_data": numbered(), "validation_steps": 2, "steps_per_epoch": 2, "epochs": 3, "verbose": 0}
    logs = [model.fit(generator, **ends).history for _ in range(2)]
    return [*found, *(loss for log in logs for name in ("loss", "val_loss") for loss in log[name])]


class Counted(keras.metrics.Metric):
    """How many rows there were."""

    def __init__(self) -> None:
        super().__init__(name="rows")
        self.rows = self.add_weight(shape=(), initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.rows.assign_add(keras.ops.sum(keras.ops.ones_like(y_true)))

    def result(self) -> Any:
        return keras.ops.cast(self.rows, "float32")


def rows_of_files(strategy: rx.Strategy, folder: str) -> dict[str, list[float]]:
    """Counts the rows of files of other sizes in each epoch of `fit`, and predicts them in their order."""
    files = [Path(folder) / f"{number}.csv" for number in range(3)]
    if strategy.worker_index == 0:  # type: ignore[attr-defined]
        for path, rows in zip(files, (range(5), range(5, 27), range(27, 30)), strict=True):
            path.write_text("\n".join(["x", *map(str, rows)]) + "\n")
    strategy.barrier("files")
    rows = rx.data.read_csv([str(path) for path in files]).map(lambda row: (np.float32([row["x"]]), np.float32([0])))
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.0), "mae", metrics=[Counted()])
    history = model.fit(rows.shuffle(3, buffer=8).batch(4), epochs=6, verbose=0).history
    return {"rows": history["rows"], "predicted": np.ravel(model.predict(rows.batch(4), verbose=0)).tolist()}


def worker(folder: str) -> dict[str, Any]:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=60)
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    at = Path(folder)
    model = compiled_model(strategy)
    np.random.seed(strategy.worker_index)  # each would shuffle in its own way
    trained = losses_of_fits(strategy)
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
        time.sleep(1)  # The other must not look for files before they are there.
        (at / "prepared").touch()
    strategy.barrier("prepared")
    prepared = (at / "prepared").exists()
    with pytest.raises(WorkersDisagreeError, match="barrier 'of 1'"):
        strategy.barrier(f"of {strategy.worker_index}")
    model.save(at / "final.keras")
    loaded = keras.saving.load_model(at / "final.keras")
    result = {
        "loaded": [variable.numpy().tolist() for variable in loaded.trainable_variables],
        "epochs": len(history.history["loss"]),
        "rate": float(model.optimizer.learning_rate),
        "weights": [np.asarray(variable).tolist() for variable in model.trainable_variables],
        "predicted": np.asarray(model.predict(x, batch_size=7, verbose=1)).tolist(),
        "drawn": [float(np.random.rand()), random.random()],
        "trained": trained,
        "prepared": prepared,
        "generators": losses_of_generators(strategy),
        "files": rows_of_files(strategy, folder),
    }
    result["errors of data"] = _errors_of_data(model, strategy, x, y)
    result["error"] = _error_of_logs(model, strategy, x, y)
    result["errors of values"] = [_error_of_values(model, strategy, x, y, alone=alone) for alone in (True, False)]
    return result


def _errors_of_data(model: keras.Model, strategy: Any, x: Any, y: Any) -> list[str]:
    """Gives each worker other data; returns what is said."""
    order = np.random.default_rng(strategy.worker_index).permutation(ROWS)
    calls = [
        lambda: model.fit(x[order], y, batch_size=8, verbose=0),
        lambda: model.fit(((x[order[i : i + 8]], y[:8]) for i in (0, 8)), verbose=0),
        lambda: model.evaluate(x, y[order], verbose=0),
        lambda: model.predict(x[: ROWS - strategy.worker_index], verbose=0),
        lambda: model.fit(x, y, batch_size=8 + strategy.worker_index, verbose=0),
    ]
    said = []
    for call in calls:
        with pytest.raises(BatchError) as error:
            call()
        said.append(str(error.value))
    return said


def _error_of_logs(model: keras.Model, strategy: Any, x: Any, y: Any) -> str:
    def end(epoch: int, logs: dict[str, float]) -> None:
        if strategy.is_chief:
            logs["only here"] = 1.0

    try:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=end)])
    except WorkersDisagreeError as error:
        return str(error)
    return ""


def _error_of_values(model: keras.Model, strategy: Any, x: Any, y: Any, *, alone: bool) -> list[str]:
    """Lets a callback assign what a worker has computed from a variable of all: on the chief alone, or other values."""
    kernel = model.layers[0].kernel

    def end(batch: int, logs: Any) -> None:
        if batch == 1 and (strategy.is_chief or not alone):
            kernel.assign(kernel * 0 + strategy.worker_index)

    try:
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=end)])
    except ReplicaDriftError as error:
        return [name.rpartition("/")[2] for name in error.variables]
    finally:
        kernel.assign(np.ones(kernel.shape))
    return []


@pytest.mark.slow
def test_two_workers_write_once_and_decide_alike(tmp_path: Path):
    first, second = run_workers(worker, 2, 1, 100, folder=str(tmp_path))
    assert first == second, "also what generators give that were seeded otherwise, after fit"
    alone = losses_of_fits(None)
    for found, wanted in zip(first["trained"], alone, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(first["generators"], losses_of_generators(None), rtol=1e-6)
    assert first["files"] == {"rows": [30.0] * 6, "predicted": [*range(30)]}, "files are dealt anew for each epoch"
    assert first["prepared"]
    assert first["epochs"] == EPOCHS, "only worker 1 had a reason to stop"
    assert len(first["predicted"]) == ROWS
    assert first.pop("loaded") == first["weights"]
    assert "worker:0 alone or with some others: only here" in first["error"]
    assert all("kernel" in found for found in first["errors of values"]), first["errors of values"]
    named = [
        re.findall(r"call (\w+) with different data. `(\w+)`: worker:0: ", said) for said in first["errors of data"]
    ]
    assert named == [[("fit", "x")], [("fit", "x")], [("evaluate", "y")], [("predict", "x")], [("fit", "batch_size")]]
    assert sorted(path.name for path in tmp_path.glob("*.keras")) == sorted(
        ["final.keras", *(f"epoch-{i + 1}.keras" for i in range(EPOCHS))]
    )
    assert (tmp_path / "log.csv").read_text().count("\n") == EPOCHS + 1
    assert len(list((tmp_path / "board" / "train").glob("events.*"))) == 1
    restored = keras.saving.load_model(tmp_path / "final.keras")
    for variable, wanted in zip(restored.trainable_variables, first["weights"], strict=True):
        np.testing.assert_allclose(np.asarray(variable), wanted, rtol=1e-6)
