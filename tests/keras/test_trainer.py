"""The global view: whatever Keras can do, under a strategy it gives what it gives on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras import layers, metrics, optimizers, regularizers

from tests.keras.comparing import (
    CLASSES,
    FEATURES,
    LABELS,
    X,
    Y,
    assert_same,
    assert_same_with_and_without,
    classifier,
    made,
    state_of,
    worked,
)

ROWS = np.random.default_rng(1).normal(size=(48, FEATURES)).astype("float32")
TARGETS = np.eye(CLASSES, dtype="float32")[np.random.default_rng(2).integers(CLASSES, size=48)]


# Batch sizes and numbers of devices.


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    ("devices", "rows", "batch_size"),
    [(1, 27, 7), (3, 27, 7), (8, 27, 7), (8, 5, 3), (2, 48, 16), (8, 48, 16)],
)
def test_any_number_of_rows_and_devices_gives_the_same(mirrored, plain_results, devices, rows, batch_size):
    model = made(mirrored(devices), batch_normalised)
    actual = worked(model, ROWS[:rows], TARGETS[:rows], batch_size=batch_size)
    assert_same(actual, plain_results(rows, batch_size))


def batch_normalised():
    return classifier(layers.BatchNormalization(), layers.Dropout(0.3))


@pytest.fixture(scope="module")
def plain_results():
    """What a model without a strategy gives for some rows and batch size."""
    known = {}

    def get(rows, batch_size):
        if (rows, batch_size) not in known:
            model = made(None, batch_normalised)
            known[rows, batch_size] = worked(model, ROWS[:rows], TARGETS[:rows], batch_size=batch_size)
        return known[rows, batch_size]

    return get


def test_predict_returns_every_row_once_and_in_order(eight):
    model = made(eight, lambda: keras.Sequential([layers.Rescaling(2.0)]))
    for rows in (1, 7, 8, 13):
        numbers = np.arange(2 * rows, dtype="float32").reshape(rows, 2)
        np.testing.assert_array_equal(model.predict(numbers, batch_size=5, verbose=0), 2 * numbers)


# Layers.


def convolutional():
    model = keras.Sequential(
        [
            keras.Input((FEATURES,)),
            layers.Reshape((FEATURES, 1)),
            layers.Conv1D(4, 3, padding="same", activation="relu"),
            layers.MaxPooling1D(2),
            layers.GroupNormalization(2),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )
    model.compile(optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


def recurrent():
    model = keras.Sequential(
        [keras.Input((FEATURES,)), layers.Reshape((3, 2)), layers.LSTM(4, dropout=0.2), layers.Dense(CLASSES)]
    )
    model.compile(optimizers.SGD(0.1), keras.losses.CategoricalCrossentropy(from_logits=True))
    return model


def regularised():
    return classifier(
        layers.Dense(4, kernel_regularizer=regularizers.L2(0.05), activity_regularizer=regularizers.L1(0.01)),
        layers.ActivityRegularization(l2=0.02),
    )


LAYERS = {
    "regularisers": regularised,
    "convolutional": convolutional,
    "recurrent": recurrent,
}


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", LAYERS)
def test_layers_see_the_global_batch(mirrored_or_central, name):
    assert_same_with_and_without(mirrored_or_central, LAYERS[name])


def test_embeddings_of_integers_train_alike(mirrored_or_central):
    def make():
        model = keras.Sequential([layers.Embedding(11, 4), layers.Flatten(), layers.Dense(1)])
        model.compile(optimizers.SGD(0.1), "mse")
        return model

    numbers = np.random.default_rng(3).integers(11, size=(21, 5))
    assert_same_with_and_without(mirrored_or_central, make, numbers, X[:, 0])


def test_several_inputs_and_outputs_by_name(mirrored_or_central):
    def make():
        left, right = keras.Input((2,), name="left"), keras.Input((4,), name="right")
        both = layers.Concatenate()([layers.Dense(3)(left), layers.Dense(3)(right)])
        outputs = {"kind": layers.Dense(CLASSES, name="kind")(both), "size": layers.Dense(1, name="size")(both)}
        model = keras.Model({"left": left, "right": right}, outputs)
        model.compile(
            optimizers.SGD(0.1),
            {"kind": keras.losses.CategoricalCrossentropy(from_logits=True), "size": "mse"},
            metrics={"kind": ["accuracy"], "size": ["mae"]},
            loss_weights={"kind": 1.0, "size": 0.3},
        )
        return model

    inputs = {"left": X[:, :2], "right": X[:, 2:]}
    targets = {"kind": Y, "size": X[:, :1]}
    weights = {"kind": np.arange(21) / 10, "size": np.ones(21)}
    expected = assert_same_with_and_without(
        mirrored_or_central, make, inputs, targets, work=worked, sample_weight=weights
    )
    assert set(expected["predictions"]) == {"kind", "size"}


# Losses, weights and metrics.


def test_sample_weights_count_globally(mirrored_or_central):
    weights = np.linspace(0, 2, 21)
    weighted = lambda: classifier(weighted_metrics=["accuracy", metrics.CategoricalCrossentropy(from_logits=True)])  # noqa: E731
    expected = assert_same_with_and_without(mirrored_or_central, weighted, sample_weight=weights)
    unweighted = worked(made(None, weighted), X, Y)
    assert not np.allclose(expected["history"]["loss"], unweighted["history"]["loss"])


def test_class_weights_count_globally(mirrored_or_central):
    def make():
        return classifier(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])

    assert_same_with_and_without(mirrored_or_central, make, X, LABELS, class_weight={0: 1.0, 1: 5.0, 2: 0.2})


def test_metrics_count_every_row_once(mirrored_or_central):
    def make():
        return classifier(
            layers.Dense(CLASSES, activation="softmax"),
            loss="mse",
            metrics=[
                metrics.AUC(num_thresholds=20, name="auc"),
                metrics.TopKCategoricalAccuracy(2, name="top_2"),
                metrics.F1Score(name="f1_per_class"),
                metrics.Precision(class_id=1, name="precision_of_1"),
                metrics.TruePositives(thresholds=[0.2, 0.5], name="true_positives"),
                metrics.OneHotMeanIoU(CLASSES, name="iou"),
                metrics.R2Score(name="r2"),
            ],
        )

    def work(model, x, y):
        return model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)

    evaluation = assert_same_with_and_without(mirrored_or_central, make, work=work)
    assert np.shape(evaluation["f1_per_class"]) == (CLASSES,)
    assert np.shape(evaluation["true_positives"]) == (2,)


@pytest.mark.daily(2)
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_each_reduction_of_a_loss_is_that_of_the_global_batch(mirrored_or_central, reduction):
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, reduction=reduction)
    make = lambda: classifier(loss=loss, optimizer=optimizers.SGD(0.01))  # noqa: E731
    assert_same_with_and_without(mirrored_or_central, make, sample_weight=np.linspace(0.5, 2, 21))


def test_losses_that_layers_add_are_counted_once(mirrored_or_central):
    class Penalty(layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(x**2))
            return x

    assert_same_with_and_without(mirrored_or_central, lambda: classifier(Penalty()))


# Optimizers.


OPTIMIZERS = {
    "adam": lambda: optimizers.Adam(0.01),
    "a schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)),
    "global clipping": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "gradient accumulation": lambda: optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2),
    "moving averages": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2),
    "loss scaling": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=64.0, dynamic_growth_steps=2
    ),
}


@pytest.mark.daily(4)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_make_the_same_updates(mirrored_or_central, name):
    assert_same_with_and_without(mirrored_or_central, lambda: classifier(optimizer=OPTIMIZERS[name]()))


def test_moving_averages_outlive_what_follows_the_training_that_wrote_them(mirrored_or_central):
    """At the end of `fit` Keras lets weights and averages share buffers, which the next step gives away.

    Alone Keras fails for it, so the model without a strategy is helped.
    """

    def work(model, separate):
        results = []
        for _ in range(2):
            results += [model.fit(X, Y, batch_size=7, verbose=0).history, state_of(model)]
            if separate:
                for variable in model.optimizer.variables:
                    variable.assign(np.asarray(variable.value))
            results += [model.evaluate(X, Y, batch_size=7, verbose=0), state_of(model)]
        return results

    make = lambda: classifier(optimizer=optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8))  # noqa: E731
    expected = work(made(None, make), separate=True)
    assert_same(work(made(mirrored_or_central, make), separate=False), expected)


def test_an_overflow_skips_the_step_and_halves_the_scale(mirrored_or_central):
    def make():
        scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=64.0)
        return classifier(optimizer=scaled)

    rows = X.copy()
    rows[4, 2] = np.inf
    model = made(mirrored_or_central, make)
    before = model.get_weights()
    model.fit(rows, Y, batch_size=21, verbose=0)
    assert_same(model.get_weights(), before)
    assert float(model.optimizer.dynamic_scale.value) == 32.0


@pytest.mark.daily(2)
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_to_its_own_accuracy(mirrored_or_central, policy):
    def work(model, x, y):
        assert isinstance(model.optimizer, optimizers.LossScaleOptimizer) == (policy == "mixed_float16")
        history = model.fit(x, y, batch_size=7, epochs=2, verbose=0).history["loss"]
        assert {variable.value.dtype for variable in model.weights} == {np.dtype("float32")}
        return history, model.predict(x, batch_size=7, verbose=0), model.get_weights()

    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        assert_same_with_and_without(mirrored_or_central, classifier, work=work, tolerance=3e-2)
    finally:
        keras.config.set_dtype_policy(previous)
