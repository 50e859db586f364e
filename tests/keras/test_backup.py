"""`rx.keras.BackupAndRestore`: a training that is interrupted ends as one that is not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.keras
from replicax.errors import ArgumentError

ROWS, BATCH, EPOCHS = 40, 8, 3


class Stop(keras.callbacks.Callback):
    """Interrupts at a step, counted from the beginning of all: by an error or by SIGTERM."""

    def __init__(self, at: int | None, how: str, during: str = "step"):
        super().__init__()
        self.at, self.how, self.during, self.steps, self.epochs, self.batches = at, how, during, 0, [], []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        self.batches.append(batch)
        if self.during == "step":
            self.stop()

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.during == "evaluation":
            self.stop()

    def stop(self) -> None:
        if self.steps == self.at:
            if self.how == "error":
                raise KeyboardInterrupt
            os.kill(os.getpid(), signal.SIGTERM)


def fit(
    directory: Path | None,
    strategy: Any,
    stop: Stop | None = None,
    shuffle: bool = True,
    seed: int = 1,
    wait: Any = None,
    **options: Any,
) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)).astype("f4"), rng.normal(size=(ROWS, 2)).astype("f4")
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(2)]
        )
        model.compile(optimizer=keras.optimizers.Adam(0.01), loss="mse", metrics=["mae"])
    callbacks: list[Any] = [each for each in (stop, wait) if each is not None]
    if directory is not None:
        callbacks.append(rx.keras.BackupAndRestore(directory, **options))
    history = model.fit(
        x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=shuffle, verbose=0, callbacks=callbacks,
        validation_data=(x[:8], y[:8]), validation_batch_size=8,
    )  # fmt: skip
    return [np.asarray(v) for v in [*model.variables, *model.optimizer.variables]], history.history


@pytest.fixture(scope="module")
def strategy() -> rx.Strategy:
    return rx.MirroredStrategy(["cpu:0", "cpu:1"])


@pytest.fixture(scope="module")
def undisturbed(strategy) -> tuple[Any, Any]:
    return fit(None, strategy)


def check_equal(found: tuple[Any, Any], expected: tuple[Any, Any]) -> None:
    for a, b in zip(found[0], expected[0], strict=True):
        np.testing.assert_array_equal(a, b)
    for name, values in expected[1].items():
        np.testing.assert_allclose(found[1][name], values, rtol=1e-6)


@pytest.mark.parametrize("at", [7, 10])
def test_sigterm_at_any_step(tmp_path: Path, strategy, undisturbed, at: int):
    """With other seeds in the second run: all randomness comes from the backup."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as exit_:
        fit(tmp_path / "b", strategy, Stop(at, "signal"))
    assert exit_.value.code == 75
    assert signal.getsignal(signal.SIGTERM) is before
    again = Stop(None, "")
    found = fit(tmp_path / "b", strategy, again, seed=2)
    assert again.epochs == list(range((at - 1) // 5, EPOCHS))
    assert again.batches[:5] == [0, 1, 2, 3, 4]
    check_equal(found, undisturbed)
    assert not (tmp_path / "b").exists()


def test_sigterm_in_an_evaluation_is_heeded_after_it(tmp_path: Path, strategy, undisturbed):
    with pytest.raises(SystemExit):
        fit(tmp_path / "b", strategy, Stop(5, "signal", "evaluation"))
    again = Stop(None, "")
    check_equal(fit(tmp_path / "b", strategy, again, seed=2), undisturbed)
    assert again.epochs == [1, 2]


def noting(save: Any, found: list[str]) -> Any:
    """A `_save` that notes where it is called: behind an epoch, or behind a step of one."""

    def noted(self: Any, epoch: int, step: int) -> None:
        found.append(f"step {step}" if step else f"epoch {epoch}")
        save(self, epoch, step)

    return noted


@pytest.mark.parametrize(("save_freq", "saved"), [("epoch", ["epoch 1"]), (3, ["step 3", "step 3"])])
def test_an_error_goes_back_to_the_last_backup(
    tmp_path: Path, strategy, undisturbed, save_freq: Any, saved: list[str], monkeypatch: pytest.MonkeyPatch
):
    found = []
    monkeypatch.setattr(rx.keras.BackupAndRestore, "_save", noting(rx.keras.BackupAndRestore._save, found))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "b", strategy, Stop(9, "error"), save_freq=save_freq)
    assert found == saved
    again = Stop(None, "")
    check_equal(fit(tmp_path / "b", strategy, again, seed=2, save_freq=save_freq), undisturbed)
    assert again.epochs == [1, 2]
    assert signal.getsignal(signal.SIGTERM) is before


def test_without_a_strategy_and_on_more_devices(tmp_path: Path, undisturbed):
    with pytest.raises(SystemExit):
        fit(tmp_path / "b", rx.OneDeviceStrategy("cpu:0"), Stop(8, "signal"))
    found = fit(tmp_path / "b", rx.MirroredStrategy([f"cpu:{i}" for i in range(4)]), seed=2)
    for a, b in zip(found[0], undisturbed[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_the_backup_can_be_kept(tmp_path: Path, strategy):
    fit(tmp_path / "b", strategy, delete_checkpoint=False, save_before_exit=False, async_=False)
    assert (tmp_path / "b").exists()


@pytest.mark.parametrize("arguments", [("", "epoch"), (3, "epoch"), ("x", 0), ("x", "batch"), ("x", True)])
def test_bad_arguments(arguments: tuple[Any, Any]):
    with pytest.raises(ArgumentError):
        rx.keras.BackupAndRestore(*arguments)


class Wait(keras.callbacks.Callback):
    """Waits in a step until there is a file."""

    def __init__(self, at: int, folder: Path, pattern: str):
        super().__init__()
        self.at, self.folder, self.pattern, self.steps = at, folder, pattern, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        deadline = time.monotonic() + 60
        while self.steps == self.at and not [*self.folder.glob(self.pattern)]:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_between_two_backups_it_goes_on_from_a_snapshot_in_memory(tmp_path, strategy, undisturbed, monkeypatch):
    monkeypatch.setenv("REPLICAX_SNAPSHOTS", str(tmp_path))
    monkeypatch.setattr("replicax.checkpoint.snapshots._FIRST_CALLS", 7)  # the second step of the second epoch
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "b", strategy, Stop(9, "error"), wait=Wait(8, tmp_path, "*/00000002"))
    again = Stop(None, "")
    check_equal(fit(tmp_path / "b", strategy, again, seed=2), undisturbed)
    assert (again.epochs, again.batches[:5]) == ([1, 2], [0, 1, 2, 3, 4])
    assert len([*tmp_path.glob("*/tried")]) == 1


def test_steps_that_only_accumulate_gradients_count_too(tmp_path: Path):
    x = np.linspace(-1, 1, 48, dtype=np.float32).reshape(12, 4)

    def trained(*callbacks, epochs=2):
        keras.utils.set_random_seed(0)
        with rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "mse")
        model.fit(x, x[:, :1], batch_size=4, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))
        return model

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1 and self.model.optimizer._iterations > 3:
                raise RuntimeError("in the second epoch")

    expected = trained().get_weights()
    with pytest.raises(RuntimeError, match="in the second epoch"):
        trained(rx.keras.BackupAndRestore(tmp_path, save_freq=1), Stop())
    found = trained(rx.keras.BackupAndRestore(tmp_path, save_freq=1)).get_weights()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_data_that_end_within_an_execution_do_not_shorten_the_next_epoch(tmp_path: Path, strategy):
    class Ten:
        def __iter__(self):
            return iter([(np.full((2, 3), i, np.float32), np.ones((2, 1), np.float32)) for i in range(10)])

    class StopAtEpoch(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def trained(*callbacks):
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.001), "mse", steps_per_execution=4)
        history = model.fit(strategy.distribute_dataset(Ten()), epochs=3, verbose=0, callbacks=[*callbacks])
        return model.get_weights(), history.history

    with pytest.raises(KeyboardInterrupt):
        trained(StopAtEpoch(), rx.keras.BackupAndRestore(tmp_path, save_freq=10, async_=False))
    check_equal(trained(rx.keras.BackupAndRestore(tmp_path, save_freq=10, async_=False)), trained())


@pytest.mark.parametrize("at", [7, 12, 15])
def test_shuffled_rows_go_on_in_the_order_of_their_epoch(tmp_path: Path, at: int):
    """Each pass of `rx.data.Rows` has another order: the backup knows which one an epoch reads."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)).astype("f4"), rng.normal(size=(ROWS, 2)).astype("f4")

    def trained(stop: Stop, directory: Path | None) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        data = rx.data.Rows(list(zip(x, y, strict=True))).shuffle(seed=1).batch(BATCH)
        with rx.MirroredStrategy().scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        backup = [] if directory is None else [rx.keras.BackupAndRestore(directory, save_freq=2, async_=False)]
        model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[*backup, stop])
        return model.get_weights()

    undisturbed = trained(Stop(None, "error"), None)
    with pytest.raises(KeyboardInterrupt):
        trained(Stop(at, "error"), tmp_path / "backup")
    for ours, wanted in zip(trained(Stop(None, "error"), tmp_path / "backup"), undisturbed, strict=True):
        np.testing.assert_array_equal(ours, wanted)


class Counts(keras.callbacks.Callback):
    """A callback of a user's that has a state."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1

    def get_state(self):
        return {"batches": self.batches}

    def set_state(self, state):
        self.batches = state["batches"]


def patient_fit(folder: Path, strategy: Any, stop: Stop | None, **options: Any) -> dict[str, Any]:
    """A training whose validation gets worse: other callbacks wait, keep the best weights, and end it."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, 4)).astype("f4"), rng.normal(size=(ROWS, 2)).astype("f4")
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(32, "tanh"), keras.layers.Dense(2)])
        model.compile(optimizer=keras.optimizers.Adam(0.2), loss="mse")
    folder.mkdir(exist_ok=True)
    best = folder / "best.weights.h5"
    patience = keras.callbacks.EarlyStopping("val_loss", patience=4, restore_best_weights=True)
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=2)
    saving = keras.callbacks.ModelCheckpoint(best, "val_loss", save_best_only=True, save_weights_only=True)
    counts = Counts()
    backup = rx.keras.BackupAndRestore(folder / "backup", **options)  # Called after the others, wherever it stands.
    history = model.fit(
        x, y, batch_size=BATCH, epochs=12, verbose=0, validation_data=(x[:8] + 1, y[:8]),
        callbacks=[backup, *([] if stop is None else [stop]), patience, plateau, saving, counts],
    )  # fmt: skip
    weights = [np.asarray(v) for v in model.variables]
    model.load_weights(best)
    return {
        "history": history.history,
        "epochs": history.epoch,
        "stopped": (patience.stopped_epoch, patience.best_epoch),
        "weights": weights,
        "batches": counts.batches,
        "best": [np.asarray(v) for v in model.variables],
    }


@pytest.mark.parametrize(
    ("at", "how", "options"), [(17, "signal", {}), (26, "error", {}), (28, "error", {"save_freq": 2})]
)
def test_other_callbacks_go_on_with_what_they_have_counted(tmp_path: Path, strategy, at, how, options):
    expected = patient_fit(tmp_path / "whole", strategy, None)
    assert len(expected["epochs"]) * 5 > at > 5 * (expected["stopped"][1] + 1)  # It stops while they wait.
    with pytest.raises((SystemExit, KeyboardInterrupt)):
        patient_fit(tmp_path / "cut", strategy, Stop(at, how), **options)
    found = patient_fit(tmp_path / "cut", strategy, None, **options)
    for mine, his in zip(*(jax.tree_util.tree_leaves(each) for each in (found, expected)), strict=True):
        np.testing.assert_array_equal(mine, his)
