"""`Model.fit` and the like on workers and parameter servers: what one device would give, nearly or exactly."""

from __future__ import annotations

import csv
import gc
import time
from collections.abc import Iterator

import keras
import numpy as np
import pytest
from keras import layers, optimizers
from sklearn.datasets import load_digits

import replicax as rx
from tests.keras.comparing import CLASSES, FEATURES, X, Y, assert_same, classifier, made, state_of

ROWS = 22 * 64
BATCH = 7  # of 21 rows


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with rx.testing.local_cluster(workers=2, servers=2):
        yield


@pytest.fixture(scope="module")
def strategy(cluster) -> Iterator[rx.ParameterServerStrategy]:
    with rx.ParameterServerStrategy() as strategy:
        # Its threads are to be there before a test looks for those that it has left behind.
        rx.coordinator.ClusterCoordinator(strategy)
        yield strategy


@pytest.fixture(scope="module")
def model(strategy):
    """A model that is trained before, so that tests need not compile its steps."""
    model = made(strategy, plain_classifier)
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    return model


def plain_classifier():
    return classifier(optimizer=optimizers.SGD(0.1))


def batches(context=None):
    """Batches of seven rows, each worker's its own."""
    share = slice(None) if context is None else slice(context.input_pipeline_id, None, context.num_input_pipelines)
    return [(X[start : start + BATCH], Y[start : start + BATCH]) for start in range(0, 21, BATCH)][share]


# Training.


def test_without_staleness_training_is_that_of_one_device(cluster):
    def work(model):
        history = model.fit(
            X, Y, batch_size=BATCH, epochs=3, shuffle=False, validation_data=(X[:14], Y[:14]), verbose=0
        ).history
        return {"history": history, "state": state_of(model)}

    def make():
        return classifier(layers.Dense(4, activation="tanh"), optimizer=optimizers.Adam(0.01, global_clipnorm=0.5))

    expected = work(made(None, make))
    with rx.ParameterServerStrategy(max_staleness=0) as strategy:
        actual = work(made(strategy, make))
    assert_same(actual["history"], expected["history"], 1e-6)
    for one, other in zip(actual["state"], expected["state"], strict=True):
        assert np.linalg.norm(one - other) <= 1e-6 * max(np.linalg.norm(other), 1e-3)


@pytest.mark.nightly
def test_training_learns_as_on_one_device(strategy):
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")

    def make():
        model = keras.Sequential([keras.Input((64,)), layers.Dense(32, "relu"), layers.Dropout(0.1), layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizers.Adam(3e-3), loss, metrics=["accuracy"])
        return model

    def accuracy(model):
        history = model.fit(images[:ROWS], labels[:ROWS], batch_size=64, epochs=10, verbose=0).history
        assert history["loss"][-1] < history["loss"][0] / 2
        return model.evaluate(images[ROWS:], labels[ROWS:], batch_size=389, verbose=0)[1]

    # Stale gradients make it a little worse, now more and now less.
    assert accuracy(made(strategy, make)) >= accuracy(made(None, make)) - 0.06


def test_an_epoch_is_counted_once_in_its_logs(strategy, model):
    class Counting(keras.callbacks.Callback):
        batches, rows = 0, []

        def on_train_batch_end(self, batch, logs=None):
            self.batches += 1

        def on_epoch_end(self, epoch, logs=None):
            self.rows.append(float(self.model.metrics[0].count))

    counting = Counting()
    before = int(model.optimizer.iterations)
    model.fit(X, Y, batch_size=BATCH, epochs=2, callbacks=[counting], verbose=0)
    assert (counting.batches, counting.rows) == (6, [21.0, 21.0])
    assert int(model.optimizer.iterations) == before + 6


def test_each_worker_makes_its_dataset(strategy, model):
    def dataset_fn(context):
        assert (context.num_input_pipelines, context.num_replicas_in_sync) == (2, 1)
        return batches(context)

    history = model.fit(rx.data.DatasetCreator(dataset_fn), steps_per_epoch=5, epochs=2, verbose=0).history
    assert len(history["loss"]) == 2
    assert len(model.fit(lambda: iter(batches()), steps_per_epoch=5, verbose=0).history["loss"]) == 1


def test_a_py_dataset_trains_and_validates(model):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return batches()[index]

    history = model.fit(Batches(), validation_data=Batches(), validation_freq=2, epochs=2, verbose=0).history
    assert [len(values) for values in history.values()] == [2, 2, 1, 1]


@pytest.mark.nightly
def test_weights_and_splits_of_arrays(model):
    weights, classes = np.linspace(0, 1, 21), dict.fromkeys(range(CLASSES), 1.0)
    fitted = model.fit(X, Y, batch_size=BATCH, sample_weight=weights, validation_split=1 / 3, verbose=0).history
    assert set(fitted) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    model.fit(X, Y, batch_size=BATCH, class_weight=classes, shuffle="batch", initial_epoch=1, epochs=2, verbose=0)


def test_a_custom_train_step_logs_what_it_returns(strategy):
    class Rows(keras.Sequential):
        def train_step(self, state, data):
            _, state = super().train_step(state, data)
            return {"rows": keras.ops.sum(keras.ops.ones_like(data[0][:, 0]))}, state

    def make():
        model = Rows([keras.Input((FEATURES,)), layers.Dense(CLASSES)])
        model.compile("sgd", "mse")
        return model

    assert made(strategy, make).fit(X, Y, batch_size=BATCH, verbose=0).history == {"rows": [7.0]}


def test_the_workers_forget_the_data_of_a_training(strategy, model):
    forgotten = []
    before = strategy.coordinator.create_per_worker_dataset(batches)._id  # Those of earlier tests may go meanwhile.
    forget = strategy.coordinator._workers.forget
    strategy.coordinator._workers.forget = lambda number: (forgotten.append(number), forget(number))

    def numbers():  # Programs, which have no numbers, are forgotten when their models are.
        return [each for each in forgotten if isinstance(each, int) and each > before]

    try:
        model.fit(X, Y, batch_size=BATCH, verbose=0)
        deadline = time.monotonic() + 30
        while len(numbers()) < 2 and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.05)
    finally:
        del strategy.coordinator._workers.forget
    assert len(numbers()) == 2, forgotten  # the iterator and the dataset


# Evaluation and prediction.


def test_evaluation_counts_every_row_once(strategy, model):
    plain = made(None, plain_classifier)
    plain.set_weights(model.get_weights())
    weights = np.linspace(0, 2, 21)
    for given in ({}, {"sample_weight": weights}, {"steps": 2}):
        expected = plain.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True, **given)
        assert_same(model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True, **given), expected, 1e-6)
    expected = plain.evaluate(X, Y, verbose=0)
    for data in (iter(batches()), batches, rx.data.DatasetCreator(batches)):
        assert_same(model.evaluate(data, verbose=0), expected, 1e-6)


def test_predictions_are_exact_and_in_order(model):
    plain = made(None, plain_classifier)
    plain.set_weights(model.get_weights())
    outputs = []
    collecting = keras.callbacks.LambdaCallback()
    collecting.on_predict_batch_end = lambda batch, logs: outputs.append((batch, logs["outputs"]))
    predicted = model.predict(X, batch_size=2, callbacks=[collecting], verbose=0)
    np.testing.assert_allclose(predicted, plain.predict(X, verbose=0), rtol=1e-6, atol=1e-6)
    assert [batch for batch, _ in outputs] == list(range(11))
    np.testing.assert_array_equal(np.concatenate([each for _, each in outputs]), predicted)


def test_single_batches(model):
    plain = made(None, plain_classifier)
    plain.set_weights(model.get_weights())
    plain.optimizer.build(plain.trainable_variables)
    for own, other in zip(plain.optimizer.variables, model.optimizer.variables, strict=True):
        own.assign(np.asarray(other))

    def work(model):
        return [
            model.train_on_batch(X, Y, return_dict=True),
            model.test_on_batch(X, Y),
            model.predict_on_batch(X[:3]),
        ]

    assert_same(work(model), work(plain))


# Callbacks.


def test_callbacks_act_as_on_one_device(model, tmp_path):
    weights, rates = [], []

    class Watching(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights.append(self.model.get_weights())
            rates.append(float(self.model.optimizer.learning_rate))

    watching = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * min(epoch, 1)),
        keras.callbacks.EarlyStopping("val_loss", patience=2, mode="max", restore_best_weights=True),
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
        Watching(),
    ]
    before = model.get_weights()
    model.fit(X, Y, batch_size=BATCH, epochs=4, validation_data=(X, Y), callbacks=watching, verbose=0)
    np.testing.assert_allclose(rates, [0, 0.1, 0.1])
    assert_same(weights[0], before, 0)  # A rate that is set here is the servers' before the next step.
    assert not np.array_equal(weights[1][0], before[0])
    assert len(weights) == 3
    assert_same(model.get_weights(), weights[0], 0)  # The first epoch's were the best.
    assert_same(keras.models.load_model(tmp_path / "2.keras").get_weights(), weights[1], 0)
    assert len(list(csv.DictReader((tmp_path / "log.csv").open()))) == 3
    model.optimizer.learning_rate = 0.1


def test_a_training_goes_on_from_its_backup(model, tmp_path):
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    backup = [keras.callbacks.BackupAndRestore(tmp_path / "backup")]
    with pytest.raises(InterruptedError):
        model.fit(X, Y, batch_size=BATCH, epochs=3, callbacks=[*backup, Stop()], verbose=0)
    state = state_of(model)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    first = []
    seeing = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: first.append((epoch, state_of(model))))
    model.fit(X, Y, batch_size=BATCH, epochs=3, callbacks=[*backup, seeing], verbose=0)
    assert [epoch for epoch, _ in first] == [2]
    assert_same(first[0][1][: len(model.weights)], state[: len(model.weights)], 0)


def test_a_callback_stops_training_within_an_epoch(model):
    stopping = keras.callbacks.LambdaCallback()
    seen = []

    def stop(batch, logs):
        seen.append(batch)
        stopping.model.stop_training = batch == 1

    stopping.on_train_batch_end = stop
    model.fit(X, Y, batch_size=1, epochs=5, callbacks=[stopping], verbose=0)
    assert seen == [0, 1]


# Errors.


def test_an_error_in_a_workers_dataset_is_raised_and_the_model_stays_usable(model):
    def broken():
        yield from batches()
        raise FloatingPointError("the sensor broke")

    with pytest.raises(FloatingPointError, match="the sensor broke") as raised:
        model.fit(broken, steps_per_epoch=20, verbose=0)
    assert type(raised.value) is FloatingPointError
    assert "in broken" in str(raised.value.__cause__)
    del raised
    gc.collect()  # The frames of the error hold Keras's callback list, and that a pool of threads.
    model.fit(X, Y, batch_size=BATCH, verbose=0)


@pytest.mark.parametrize(
    ("data", "given", "message"),
    [
        (rx.data.DatasetCreator(batches), {}, "`steps_per_epoch` has to be given"),
        (iter(batches()), {"steps_per_epoch": 2}, "rx.data.DatasetCreator"),
        (batches, {"y": Y, "steps_per_epoch": 2}, "`y` is for arrays"),
        (batches, {"batch_size": 3, "steps_per_epoch": 2}, "`batch_size` is for arrays"),
        (X[:0], {"y": Y[:0]}, "no rows"),
    ],
    ids=["no steps", "iterator", "y", "batch_size", "no rows"],
)
def test_data_that_cannot_be_trained_on_are_refused(model, data, given, message):
    with pytest.raises(ValueError, match=message):
        model.fit(data, **given, verbose=0)


@pytest.mark.slow
def test_a_dataset_without_batches_is_an_error(model):
    with pytest.raises(rx.errors.BatchError, match="no batch at all"):
        model.fit(list, steps_per_epoch=1, verbose=0)
    with pytest.raises(rx.errors.BatchError, match="no batch at all"):
        model.evaluate(list, verbose=0)


@pytest.mark.nightly
def test_a_model_from_elsewhere_is_refused(strategy):
    optimizer = optimizers.SGD(0.1)
    with pytest.raises(rx.errors.VariableError, match=r"learning_rate|iteration"):
        made(strategy, lambda: classifier(optimizer=optimizer)).fit(X, Y, verbose=0)
