"""Ways to run the steps of a model, what they cost, and bad input."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest
from keras import layers, optimizers

import replicax as rx
from tests.keras.comparing import (
    CLASSES,
    FEATURES,
    LABELS,
    TOLERANCE,
    X,
    Y,
    assert_same,
    assert_same_with_and_without,
    classifier,
    made,
    state_of,
    trained,
)

# Ways to run.


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    "how",
    [{"steps_per_execution": 3}, {"jit_compile": False}, {"run_eagerly": True}],
    ids=["3 steps per execution", "not compiled", "eager"],
)
def test_each_way_of_running_steps_gives_the_same(mirrored_or_central, how):
    rows = slice(0, 20)  # In batches of 5: four steps, of which three make one execution.

    def work(model, x, y):
        return trained(model, x, y, batch_size=5, epochs=1), model.predict(x, batch_size=5, verbose=0)

    make = lambda: classifier(layers.Dropout(0.2), metrics=None, **how)  # noqa: E731
    assert_same_with_and_without(mirrored_or_central, make, X[rows], Y[rows], work=work)


def test_validation_data_are_evaluated_in_batches_of_their_own(mirrored_or_central):
    expected = assert_same_with_and_without(
        mirrored_or_central,
        classifier,
        validation_data=(X[:10], Y[:10], np.linspace(0, 1, 10)),
        validation_batch_size=4,
    )
    assert set(expected["history"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_a_validation_split_leaves_out_the_same_rows(mirrored_or_central):
    assert_same_with_and_without(mirrored_or_central, classifier, validation_split=0.3, validation_freq=2, epochs=3)


def test_steps_per_epoch_and_initial_epoch_are_kept(mirrored_or_central):
    expected = assert_same_with_and_without(
        mirrored_or_central, classifier, steps_per_epoch=2, initial_epoch=1, epochs=3
    )
    assert len(expected["history"]["loss"]) == 2


def test_a_custom_train_step_is_the_one_that_runs(mirrored_or_central):
    class Halved(keras.Model):
        """Trains towards half the targets, with its own metric in the logs."""

        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(CLASSES)

        def call(self, x):
            return self.dense(x)

        def loss_and_updates(self, trainable, non_trainable, x, y):
            outputs, non_trainable = self.stateless_call(trainable, non_trainable, x)
            return keras.ops.mean((outputs - y / 2) ** 2), non_trainable

        def train_step(self, state, data):
            trainable, non_trainable, optimizer_variables, metric_variables = state
            gradient = jax.value_and_grad(self.loss_and_updates, has_aux=True)
            (loss, non_trainable), gradients = gradient(trainable, non_trainable, *data)
            trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
            logs = {"halved": loss, "rows": keras.ops.sum(keras.ops.ones_like(data[0][:, 0]))}
            return logs, (trainable, non_trainable, optimizer_variables, metric_variables)

    def make():
        model = Halved()
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    expected = assert_same_with_and_without(mirrored_or_central, make)
    assert expected["history"]["rows"] == [7.0, 7.0]


def test_a_custom_loss_and_metric_function_of_a_model_are_used(mirrored_or_central):
    class Custom(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.abs(y - y_pred)) + 0.1 * super().compute_loss(x, y, y_pred, sample_weight)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            return {**super().compute_metrics(x, y, y_pred, sample_weight), "largest": keras.ops.max(y_pred)}

    def make():
        model = Custom([layers.Dense(CLASSES)])
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    assert_same_with_and_without(mirrored_or_central, make)


def test_frozen_layers_stay_as_they_are(mirrored_or_central):
    def make():
        frozen = layers.Dense(4, trainable=False)
        model = classifier(frozen, layers.BatchNormalization())
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    model = made(mirrored_or_central, make)
    before = model.layers[1].get_weights()
    assert_same_with_and_without(mirrored_or_central, make)
    model.fit(X, Y, batch_size=7, verbose=0)
    assert_same(model.layers[1].get_weights(), before, tolerance=0)


# Single batches.


def test_single_batches_give_the_same(mirrored_or_central):
    def work(model, x, y):
        weights = np.linspace(0, 1, len(x))
        return [
            model.train_on_batch(x, y, return_dict=True),
            model.train_on_batch(x, y),
            model.test_on_batch(x, y, sample_weight=weights, return_dict=True),
            model.test_on_batch(x, y, sample_weight=weights),
            model.predict_on_batch(x),
            state_of(model),
        ]

    make = lambda: classifier(layers.BatchNormalization(), layers.Dropout(0.5))  # noqa: E731
    assert_same_with_and_without(mirrored_or_central, make, X[:7], Y[:7], work=work)


def test_class_weights_of_a_single_batch(mirrored_or_central):
    def work(model, x, y):
        return model.train_on_batch(x, y, class_weight={0: 1.0, 1: 5.0, 2: 0.2}, return_dict=True)

    make = lambda: classifier(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=None)  # noqa: E731
    assert_same_with_and_without(mirrored_or_central, make, X, LABELS, work=work)


# What a step costs.


def test_an_epoch_compiles_each_step_once(mirrored_or_central, compilations):
    model = made(mirrored_or_central, classifier)
    model.fit(X, Y, batch_size=7, verbose=0)
    with compilations() as compiled:
        model.fit(X, Y, batch_size=7, epochs=3, verbose=0)
    assert [message for message in compiled if "step" in message] == []


def test_a_learning_rate_that_is_set_between_epochs_counts(mirrored_or_central):
    def work(model, *data):
        first = trained(model, *data)
        model.optimizer.learning_rate = 0.001
        return first, trained(model, *data)

    assert_same_with_and_without(mirrored_or_central, classifier, work=work)


def test_weights_that_are_set_between_epochs_count(mirrored_or_central):
    weights = [np.full(weight.shape, 0.1, "float32") for weight in made(None, classifier).get_weights()]

    def work(model, *data):
        trained(model, *data)
        model.set_weights(weights)
        return trained(model, *data)

    assert_same_with_and_without(mirrored_or_central, classifier, work=work)


def test_state_lives_on_every_device_after_training(mirrored):
    model = made(mirrored(3), classifier)
    model.fit(X, Y, batch_size=7, verbose=0)
    for variable in (*model.variables, *model.optimizer.variables):
        assert variable.value.sharding.device_set == set(mirrored(3).devices), variable.path
    for variable in model.variables:
        assert variable.value.is_fully_replicated, variable.path


def test_state_lives_on_the_parameter_device_of_central_storage():
    strategy = rx.CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:3")
    model = made(strategy, classifier)
    model.fit(X, Y, batch_size=7, validation_data=(X, Y), verbose=0)
    model.predict(X, verbose=0)
    for variable in (*model.variables, *model.optimizer.variables):
        assert variable.value.sharding.device_set == {strategy.parameter_device}, variable.path


def test_a_step_that_updates_twice_is_the_same_with_central_storage():
    class Twice(keras.Sequential):
        """Updates by the gradients at the updated weights too, which no server can compute."""

        def train_step(self, state, data):
            for _ in range(2):
                logs, state = super().train_step(state, data)
            return logs, state

    def make():
        model = Twice([keras.Input((FEATURES,)), layers.Dense(CLASSES)])
        model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
        return model

    assert_same_with_and_without(rx.CentralStorageStrategy(["cpu:1", "cpu:2"], "cpu:3"), make)


# Bad input.


@pytest.mark.parametrize("batch_size", [0, -1, 1.5])
@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
def test_a_batch_size_below_one_is_an_error(mirrored_or_central, loop, batch_size):
    model = made(mirrored_or_central, classifier)
    data = (X,) if loop == "predict" else (X, Y)
    with pytest.raises(ValueError, match="batch_size"):
        getattr(model, loop)(*data, batch_size=batch_size, verbose=0)


@pytest.mark.parametrize("loop", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("source", ["arrays", "generator", "dataset"])
def test_data_that_yield_nothing_are_an_error(mirrored_or_central, loop, source):
    class Nothing(keras.utils.PyDataset):
        def __len__(self):
            return 0

        def __getitem__(self, index):
            raise IndexError(index)

    data = {
        "arrays": (X[:0],) if loop == "predict" else (X[:0], Y[:0]),
        "generator": ((batch for batch in ()),),
        "dataset": (Nothing(),),
    }[source]
    model = made(mirrored_or_central, classifier)
    with pytest.raises(ValueError, match=r"no rows|no batch|at least one batch"):
        getattr(model, loop)(*data, verbose=0)


def test_the_tolerance_is_that_of_the_issue():
    assert TOLERANCE <= 1e-5
