"""The TensorBoard callback, and what it writes, read back."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from tests.events import scalars, series
from tests.keras.comparing import CLASSES, X, Y, assert_same, classifier, made, trained

VALIDATION = (X[:9], Y[:9])


def expected(values, first=0):
    return [(first + index, pytest.approx(value, rel=1e-5)) for index, value in enumerate(values)]


@pytest.mark.parametrize("devices", [None, 8])
def test_epochs_are_written_to_two_runs(mirrored, tmp_path, devices):
    model = made(None if devices is None else mirrored(devices), classifier)
    callback = rx.keras.TensorBoard(tmp_path)
    history = trained(model, X, Y, validation_data=VALIDATION, callbacks=[callback])["history"]
    assert scalars(tmp_path / "train") == {
        "epoch_loss": expected(history["loss"]),
        "epoch_accuracy": expected(history["accuracy"]),
        "epoch_learning_rate": expected([0.1, 0.1]),
    }
    validation = scalars(tmp_path / "validation")
    assert validation["epoch_loss"] == expected(history["val_loss"])
    assert validation["epoch_accuracy"] == expected(history["val_accuracy"])
    loss = history["val_loss"]
    assert validation["evaluation_loss_vs_iterations"] == [(3, pytest.approx(loss[0])), (6, pytest.approx(loss[1]))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train", "validation"]


def test_parts_of_the_time_are_written_where_a_ledger_is_kept(three, tmp_path):
    with rx.ledger.recording(tmp_path / "kept"):
        trained(made(three, classifier), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path)])
    parts = {name: dict(found) for name, found in scalars(tmp_path / "train").items() if name.startswith("ledger/")}
    assert parts.keys() >= {"ledger/computing", "ledger/callbacks_and_user_code"}
    for epoch in range(2):
        assert sum(found.get(epoch, 0.0) for found in parts.values()) == pytest.approx(1.0, abs=1e-5)


def test_evaluations_are_written_where_gradients_are_accumulated(eight, tmp_path):
    """Keras's optimizer then counts its updates in an array that it computes."""
    model = made(eight, classifier)
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2), "categorical_crossentropy")
    model.fit(X, Y, validation_data=VALIDATION, verbose=0, callbacks=[rx.keras.TensorBoard(tmp_path)])
    (point,) = scalars(tmp_path / "validation")["evaluation_loss_vs_iterations"]
    assert point[0] == int(np.asarray(model.optimizer.iterations))


def test_training_is_the_same_with_and_without_it(eight, tmp_path):
    callback = rx.keras.TensorBoard(tmp_path, update_freq=1, histogram_freq=1, write_steps_per_second=True)
    watched = trained(made(eight, classifier), X, Y, callbacks=[callback])
    assert_same(watched, trained(made(eight, classifier), X, Y), tolerance=0)


def test_batches_are_written_over_the_steps_since_training_began(three, tmp_path):
    model = made(three, classifier)
    losses = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: losses.append(logs["loss"]))
    trained(model, X, Y, callbacks=[rx.keras.TensorBoard(tmp_path, update_freq="batch"), note])
    assert scalars(tmp_path / "train")["batch_loss"] == expected(losses, first=1)


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("update_freq", "steps_per_execution", "expected"),
    [(2, 1, [2, 4, 6]), (4, 1, [4]), (2, 2, [2, 5, 6]), (1, 3, [3, 6])],
)
def test_batches_are_written_every_few_steps(three, tmp_path, update_freq, steps_per_execution, expected):
    """Three steps an epoch; where several make one execution, the last of them is heard of."""
    model = made(three, lambda: classifier(steps_per_execution=steps_per_execution))
    trained(model, X, Y, callbacks=[rx.keras.TensorBoard(tmp_path, update_freq=update_freq)])
    assert [step for step, _ in scalars(tmp_path / "train")["batch_loss"]] == expected


def test_learning_rates_of_a_schedule_and_below_a_loss_scale_are_written(three, tmp_path):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.25])
    make = lambda: classifier(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule)))  # noqa: E731
    trained(made(three, make), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path)])
    assert scalars(tmp_path / "train")["epoch_learning_rate"] == expected([0.5, 0.25])


def test_steps_per_second_are_written(three, tmp_path):
    callback = rx.keras.TensorBoard(tmp_path, update_freq=2, write_steps_per_second=True)
    trained(made(three, classifier), X, Y, validation_data=VALIDATION, callbacks=[callback])
    found = scalars(tmp_path / "train")
    assert [step for step, _ in found["epoch_steps_per_second"]] == [0, 1]
    assert [step for step, _ in found["batch_steps_per_second"]] == [2, 4, 6]
    speeds = [speed for tag in ("epoch_steps_per_second", "batch_steps_per_second") for _, speed in found[tag]]
    assert min(speeds) > 0
    assert found["epoch_steps_per_second"][1][1] > found["epoch_steps_per_second"][0][1]  # The first epoch compiles.


def test_metrics_of_several_numbers_give_a_series_each(three, tmp_path):
    make = lambda: classifier(metrics=[keras.metrics.F1Score(name="f1")])  # noqa: E731
    history = trained(made(three, make), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path)])["history"]
    found = scalars(tmp_path / "train")
    for index in range(CLASSES):
        assert found[f"epoch_f1/{index}"] == expected([float(values[index]) for values in history["f1"]])


def test_histograms_of_weights_are_written_every_few_epochs(eight, tmp_path):
    model = made(eight, lambda: classifier(keras.layers.BatchNormalization()))
    trained(model, X, Y, epochs=3, callbacks=[rx.keras.TensorBoard(tmp_path, histogram_freq=2)])
    found = series(tmp_path / "train", "histo")
    assert [*found] == [f"{weight.path}/histogram" for weight in model.weights]
    for weight in model.weights:
        written = found[f"{weight.path}/histogram"]
        assert [step for step, _ in written] == [0, 2]
        values = np.asarray(weight.value)
        _, last = written[-1]
        assert last.num == values.size
        assert last.min == pytest.approx(values.min())
        assert last.max == pytest.approx(values.max())
        assert last.sum == pytest.approx(values.sum(), rel=1e-5, abs=1e-5)


def test_weights_that_are_not_finite_or_empty_do_not_end_training(three, tmp_path):
    class Odd(keras.layers.Layer):
        def build(self, shape):
            self.add_weight(name="empty", shape=(0,), trainable=False)
            self.add_weight(name="nan", shape=(2,), trainable=False).assign([np.nan, 1.0])
            self.add_weight(name="half", shape=(2,), dtype="bfloat16", trainable=False)

        def call(self, x):
            return x

    model = made(three, lambda: classifier(Odd()))
    trained(model, X, Y, epochs=1, callbacks=[rx.keras.TensorBoard(tmp_path, histogram_freq=1)])
    found = {
        tag.split("/")[-2]: written for tag, written in series(tmp_path / "train", "histo").items() if "odd" in tag
    }
    assert sorted(found) == ["half", "nan"]
    assert found["nan"][0][1].num == 1


def profiles(folder):
    return sorted(folder.rglob("*.xplane.pb"))


@pytest.mark.daily(2)
@pytest.mark.parametrize(("profile_batch", "steps"), [(2, [2]), ((2, 4), [2, 3, 4]), ((5, 99), [5, 6])])
def test_chosen_batches_are_profiled(three, tmp_path, profile_batch, steps):
    callback = rx.keras.TensorBoard(tmp_path, profile_batch=profile_batch)
    trained(made(three, classifier), X, Y, callbacks=[callback])
    (profile,) = profiles(tmp_path)
    assert profile.is_relative_to(tmp_path / "train" / "plugins" / "profile")
    traced = jax.profiler.ProfileData.from_file(str(profile))
    found = {
        dict(event.stats)["step_num"]
        for plane in traced.planes
        for line in plane.lines
        for event in line.events
        if event.name.startswith("train") and "step_num" in dict(event.stats)
    }
    assert sorted(found) == steps


def test_without_a_chosen_batch_nothing_is_profiled(three, tmp_path):
    trained(made(three, classifier), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path)])
    assert profiles(tmp_path) == []


def test_somebody_elses_profile_is_left_alone(three, tmp_path, caplog):
    with jax.profiler.trace(str(tmp_path / "mine")):
        trained(made(three, classifier), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path / "logs", profile_batch=1)])
    assert "could not start the profiler" in caplog.text
    assert len(profiles(tmp_path / "mine")) == 1
    assert profiles(tmp_path / "logs") == []


def test_an_evaluation_on_its_own_is_written_and_closed(three, tmp_path):
    model = made(three, classifier)
    trained(model, X, Y)
    evaluation = model.evaluate(X, Y, verbose=0, return_dict=True, callbacks=[rx.keras.TensorBoard(tmp_path)])
    assert scalars(tmp_path / "validation") == {
        f"evaluation_{name}_vs_iterations": [(6, pytest.approx(value))] for name, value in evaluation.items()
    }
    assert open_files(tmp_path) == []


def test_a_second_training_adds_files_and_loses_none(three, tmp_path):
    model, callback = made(three, classifier), rx.keras.TensorBoard(tmp_path)
    for epoch in range(3):
        model.fit(X, Y, initial_epoch=epoch, epochs=epoch + 1, verbose=0, callbacks=[callback])
    assert len(list((tmp_path / "train").iterdir())) == 3
    assert [step for step, _ in scalars(tmp_path / "train")["epoch_loss"]] == [0, 1, 2]


# Files.


def open_files(folder):
    """The files below a folder that this process holds open, also when garbage has been collected."""
    if found := _open_files(folder):
        gc.collect()
        found = _open_files(folder)
    return found


def _open_files(folder):
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.exists(link) and str(folder) in os.readlink(link)]


@pytest.fixture(autouse=True)
def no_file_stays_open(tmp_path):
    yield
    assert open_files(tmp_path) == []


class Failing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise RuntimeError("as planned")


def test_a_training_that_fails_leaves_what_was_written_and_no_open_file(three, tmp_path):
    def fail():
        callback = rx.keras.TensorBoard(tmp_path, update_freq="batch", profile_batch=(1, 9))
        with pytest.raises(RuntimeError, match="as planned"):
            trained(made(three, classifier), X, Y, callbacks=[callback, Failing()])

    fail()
    assert open_files(tmp_path) == []
    assert [step for step, _ in scalars(tmp_path / "train")["batch_loss"]] == [1, 2]
    assert len(profiles(tmp_path)) == 1
    trained(made(three, classifier), X, Y, callbacks=[rx.keras.TensorBoard(tmp_path / "next", profile_batch=1)])
    assert len(profiles(tmp_path / "next")) == 1


# Errors.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"log_dir": ""}, "`log_dir` is the path of a folder, got ''"),
        ({"log_dir": 3}, "`log_dir` is the path of a folder, got 3"),
        ({"update_freq": "often"}, "`update_freq` is 'epoch', 'batch' or a number of steps, at least 1, got 'often'"),
        ({"update_freq": 0}, "`update_freq` is .* got 0"),
        ({"update_freq": True}, "`update_freq` is .* got True"),
        ({"histogram_freq": -1}, "`histogram_freq` is a number of epochs, or 0 for none, got -1"),
        ({"histogram_freq": 0.5}, "`histogram_freq` is .* got 0.5"),
        ({"profile_batch": -2}, "`profile_batch` is .* got -2"),
        ({"profile_batch": "5,6"}, "`profile_batch` is .* got '5,6'"),
        ({"profile_batch": (3, 2)}, r"`profile_batch` is .* 1 <= first <= last, got \(3, 2\)"),
        ({"profile_batch": (0, 2)}, r"`profile_batch` is .* got \(0, 2\)"),
        ({"profile_batch": (1, 2, 3)}, r"`profile_batch` is .* got \(1, 2, 3\)"),
    ],
)
def test_a_bad_argument_is_an_error(arguments, message):
    with pytest.raises(rx.errors.ArgumentError, match=message):
        rx.keras.TensorBoard(**arguments)


def test_without_tensorboardx_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(rx.errors.ArgumentError, match=r"pip install 'replicax\[tensorboard\]'"):
        rx.keras.TensorBoard()


@pytest.mark.parametrize("log_dir", ["file", "file/logs"])
def test_an_unwritable_folder_is_an_error_before_training_starts(three, tmp_path, log_dir):
    (tmp_path / "file").write_text("precious")
    model = made(three, classifier)
    before = model.get_weights()
    with pytest.raises(rx.errors.ArgumentError, match=f"cannot write to log_dir='.*{log_dir}'"):
        model.fit(X, Y, verbose=0, callbacks=[rx.keras.TensorBoard(tmp_path / log_dir)])
    assert_same(model.get_weights(), before, tolerance=0)
    assert (tmp_path / "file").read_text() == "precious"


def test_it_is_a_callback_of_keras_and_known_by_its_public_name():
    assert issubclass(rx.keras.TensorBoard, keras.callbacks.Callback)
    assert rx.keras.TensorBoard is rx.keras.TensorBoard
    assert f"{rx.keras.TensorBoard.__module__}.{rx.keras.TensorBoard.__qualname__}" == "replicax.keras.TensorBoard"
    with pytest.raises(AttributeError, match="has no attribute 'TensorBored'"):
        rx.keras.TensorBored  # noqa: B018


def test_importing_replicax_loads_neither_keras_nor_tensorboardx():
    program = "import sys, replicax; assert not {'keras', 'tensorboardX'} & set(sys.modules)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)
