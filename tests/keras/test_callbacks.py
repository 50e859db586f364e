"""Keras's callbacks do under a strategy what they do without one."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from keras import callbacks

from tests.keras.comparing import X, Y, assert_same, assert_same_with_and_without, classifier, made, state_of, trained

VALIDATION = (X[:9] + 1, Y[:9])


def with_adam():
    return classifier(keras.layers.BatchNormalization(), optimizer=keras.optimizers.Adam(0.01))


def averaged():
    return classifier(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7))


def fitted(*callback_list, **fit):
    """Returns work for `assert_same_with_and_without`: training with callbacks, made anew for each model."""

    def work(model, x, y):
        settings = {"epochs": 4, "validation_data": VALIDATION, **fit}
        return trained(model, x, y, callbacks=[make() for make in callback_list], **settings)

    return work


def test_early_stopping_restores_the_best_weights(eight):
    # Training goes the wrong way, so the first epochs are the best.
    stop = lambda: callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)  # noqa: E731
    worsening = lambda: classifier(optimizer=keras.optimizers.SGD(-0.3))  # noqa: E731
    expected = assert_same_with_and_without(eight, worsening, work=fitted(stop, epochs=10))
    assert len(expected["history"]["loss"]) == 3


def test_the_learning_rate_is_reduced_on_a_plateau(eight):
    reduce = lambda: callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1, min_delta=10.0)  # noqa: E731
    expected = assert_same_with_and_without(eight, with_adam, work=fitted(reduce))
    np.testing.assert_allclose(expected["history"]["learning_rate"], [0.01, 0.01, 0.005, 0.0025])


def test_the_learning_rate_follows_a_schedule(eight):
    schedule = lambda: callbacks.LearningRateScheduler(lambda epoch, rate: rate / (1 + epoch))  # noqa: E731
    expected = assert_same_with_and_without(eight, with_adam, work=fitted(schedule))
    np.testing.assert_allclose(expected["history"]["learning_rate"], [0.01, 0.005, 0.01 / 6, 0.01 / 24])


def test_a_csv_log_has_the_same_numbers(eight, tmp_path):
    def work(model, x, y):
        path = tmp_path / "log.csv"
        trained(model, x, y, callbacks=[callbacks.CSVLogger(path)], validation_data=VALIDATION)
        header, *rows = path.read_text().splitlines()
        return {name: [float(row.split(",")[i]) for row in rows] for i, name in enumerate(header.split(","))}

    expected = assert_same_with_and_without(eight, classifier, work=work)
    assert sorted(expected) == ["accuracy", "epoch", "loss", "val_accuracy", "val_loss"]


def test_training_ends_on_nan(eight):
    rows = X.copy()
    rows[10] = np.nan

    def work(model, x, y):
        history = model.fit(
            x, y, batch_size=7, epochs=3, shuffle=False, callbacks=[callbacks.TerminateOnNaN()], verbose=0
        )
        return {"nan": np.isnan(history.history["loss"]), "steps": int(model.optimizer.iterations.value)}

    expected = assert_same_with_and_without(eight, classifier, rows, Y, work=work)
    assert expected == {"nan": [True], "steps": 2}


def test_lambda_callbacks_are_called_with_the_same_logs(eight):
    def work(model, x, y):
        notes = []
        note = callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: notes.append(("begin", epoch, dict(logs))),
            on_train_batch_end=lambda batch, logs: notes.append(("batch", batch, dict(logs))),
            on_epoch_end=lambda epoch, logs: notes.append(("end", epoch, dict(logs))),
            on_train_end=lambda logs: notes.append(("done", 0, dict(logs))),
        )
        trained(model, x, y, callbacks=[note])
        assert " ".join(name for name, _, _ in notes) == "begin batch batch batch end begin batch batch batch end done"
        return [note[1:] for note in notes]

    assert_same_with_and_without(eight, classifier, work=work)


def test_a_callback_that_reads_weights_in_the_middle_of_an_epoch_sees_the_latest(eight):
    class Reader(callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.model.jax_state_sync()
            self.seen.append(state_of(self.model))

    def work(model, x, y):
        reader = Reader()
        return trained(model, x, y, callbacks=[reader]), reader.seen

    _, seen = assert_same_with_and_without(eight, with_adam, work=work)
    assert len(seen) == 6
    assert np.abs(seen[0][0] - seen[1][0]).max() > 0


def test_a_callback_that_sets_weights_in_the_middle_of_an_epoch_is_heard(eight):
    class Resetter(callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                self.model.jax_state_sync()
                self.model.layers[0].set_weights([np.full((6, 5), 0.1), np.zeros(5)])

    assert_same_with_and_without(eight, with_adam, work=fitted(Resetter))


def test_averaged_weights_are_swapped_in_for_evaluation(eight):
    swap = lambda: callbacks.SwapEMAWeights(swap_on_epoch=True)  # noqa: E731
    assert_same_with_and_without(eight, averaged, work=fitted(swap, epochs=2))


# Checkpoints.


@pytest.mark.parametrize("weights_only", [True, False])
def test_checkpoints_hold_the_best_epoch(eight, tmp_path, weights_only):
    path = tmp_path / ("best.weights.h5" if weights_only else "best.keras")

    def work(model, x, y):
        path.unlink(missing_ok=True)
        checkpoint = callbacks.ModelCheckpoint(path, "val_loss", save_best_only=True, save_weights_only=weights_only)
        history = trained(model, x, y, epochs=3, validation_data=VALIDATION, callbacks=[checkpoint])["history"]
        loaded = model
        if weights_only:
            model.load_weights(path)
        else:
            loaded = keras.saving.load_model(path)
        evaluation = loaded.evaluate(*VALIDATION, verbose=0)
        np.testing.assert_allclose(evaluation[0], min(history["val_loss"]), rtol=1e-5)
        return history, loaded.get_weights()

    assert_same_with_and_without(eight, with_adam, work=work)


def test_checkpoints_are_written_every_few_steps(eight, tmp_path):
    def work(model, x, y):
        for old in tmp_path.iterdir():
            old.unlink()
        checkpoint = callbacks.ModelCheckpoint(
            tmp_path / "{epoch}.{batch}.weights.h5", save_freq=2, save_weights_only=True
        )
        model.fit(x, y, batch_size=7, epochs=2, verbose=0, callbacks=[checkpoint])
        results = {}
        for path in sorted(tmp_path.iterdir()):
            model.load_weights(path)
            results[path.name] = state_of(model)
        return results

    expected = assert_same_with_and_without(eight, with_adam, work=work)
    assert len(expected) == 3  # After the steps 2, 4 and 6.


class Interrupt(callbacks.Callback):
    """Ends the process, as it were, at some step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_begin(self, batch, logs=None):
        self.step -= 1
        if self.step < 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("second_devices", [8, 1])
def test_an_interrupted_training_goes_on_from_its_backup(mirrored, tmp_path, second_devices):
    """On another number of devices even."""
    settings = {"batch_size": 7, "epochs": 3, "shuffle": False, "verbose": 0}
    uninterrupted = made(None, classifier)
    uninterrupted.fit(X, Y, **settings)
    backup = lambda: callbacks.BackupAndRestore(tmp_path / "backup")  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        made(mirrored(8), classifier).fit(X, Y, callbacks=[backup(), Interrupt(4)], **settings)
    model = made(mirrored(second_devices), classifier)
    history = model.fit(X, Y, callbacks=[backup()], **settings)
    assert history.epoch == [1, 2]
    assert_same(state_of(model), state_of(uninterrupted))


def test_callbacks_get_plain_numbers_that_can_be_written_as_json(eight):
    sent = []
    note = callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: sent.append(json.dumps(logs)))
    trained(made(eight, classifier), X, Y, callbacks=[note])
    assert len(sent) == 2
