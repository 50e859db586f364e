"""The configurations of `fit_exact.py`: models with their data, each made by a function that names it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np
from keras import layers

ROWS, FEATURES, CLASSES = 260, 12, 4  # 260 rows: the last batch is smaller for every batch size used
LIMIT, HALF_LIMIT = 1e-5, 2e-2


@dataclasses.dataclass
class Case:
    """A compiled model with what to call it on.

    Attributes:
        model: The model.
        x: Inputs: arrays, or a dataset of batches.
        y: Targets; None if `x` has them.
        fit: Further arguments of `fit`.
        evaluate: Further arguments of `evaluate`.
        train: Trains the model in place of `fit`; returns losses.
    """

    model: keras.Model
    x: Any = None
    y: Any = None
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)
    evaluate: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: Callable[[int], dict[str, list[float]]] | None = None


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One row of the table.

    Attributes:
        name: What it tries.
        make: Makes the case; called in the strategy's scope.
        batch: The global batch size.
        devices: Numbers of devices.
        limit: Largest difference allowed.
    """

    name: str
    make: Callable[[], Case]
    batch: int
    devices: tuple[int, ...]
    limit: float


CONFIGURATIONS: list[Configuration] = []


def configuration(batch: int, *devices: int, limit: float = LIMIT) -> Callable[[Callable[[], Case]], Any]:
    """Adds a function that makes a case to the table, under its own name."""

    def add(make: Callable[[], Case]) -> Callable[[], Case]:
        name = make.__name__.replace("_", " ")
        CONFIGURATIONS.append(Configuration(name, make, batch, (*devices, 8), limit))
        return make

    return add


# Parts of the cases.


def inputs(*shape: int, rows: int = ROWS) -> np.ndarray:
    """Returns standard normal inputs, the same in each call."""
    return np.random.default_rng(1).standard_normal((rows, *(shape or (FEATURES,)))).astype("float32")


def labels(classes: int = CLASSES, rows: int = ROWS) -> np.ndarray:
    """Returns integer labels, the same in each call."""
    return np.random.default_rng(2).integers(0, classes, rows).astype("int32")


def crossentropy() -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def network(*hidden: layers.Layer) -> keras.Sequential:
    """Returns a perceptron with `hidden` after its first layer."""
    return keras.Sequential([keras.Input((FEATURES,)), layers.Dense(16, "relu"), *hidden, layers.Dense(CLASSES)])


def classifier(model: keras.Model, x: Any = None, **options: Any) -> Case:
    """Returns a case that classifies; `options` are of `compile`."""
    settings: dict[str, Any] = {"optimizer": keras.optimizers.SGD(0.1), "metrics": ["accuracy"], **options}
    model.compile(loss=crossentropy(), **settings)
    return Case(model, inputs() if x is None else x, labels())


# The cases.


@configuration(128, 1, 2, 3)
def plain() -> Case:
    return classifier(network())


@configuration(7, 3)
def Adam() -> Case:
    return classifier(network(), optimizer=keras.optimizers.Adam(1e-3))


@configuration(100, 2, 3)
def BatchNorm() -> Case:
    return classifier(network(layers.BatchNormalization()))


@configuration(97, 3)
def Dropout() -> Case:
    return classifier(network(layers.Dropout(0.4)))


@configuration(7, 2)
def L2_and_activity_regularizers() -> Case:
    regularized = layers.Dense(16, "relu", kernel_regularizer=keras.regularizers.L2(1e-2), activity_regularizer="l1")
    return classifier(network(regularized), optimizer=keras.optimizers.SGD(0.01))


@configuration(100)
def sample_weight() -> Case:
    case = classifier(network(), weighted_metrics=["accuracy"])
    weights = np.linspace(0, 2, ROWS, dtype="float32")
    case.fit["sample_weight"] = case.evaluate["sample_weight"] = weights
    return case


@configuration(97, 2)
def class_weight() -> Case:
    case = classifier(network())
    case.fit["class_weight"] = {0: 0.5, 1: 2.0, 2: 1.0, 3: 0.0}
    return case


@configuration(128)
def AUC_precision_and_recall() -> Case:
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(8, "relu"), layers.Dense(1, "sigmoid")])
    metrics = [keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()]
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics)
    return Case(model, inputs(), labels(2)[:, None].astype("float32"))


@configuration(97)
def top_k_and_per_class_metrics() -> Case:
    model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES, "softmax")])
    metrics = [
        keras.metrics.TopKCategoricalAccuracy(2),
        keras.metrics.F1Score(average=None),
        keras.metrics.Precision(class_id=1),
    ]
    model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", metrics=metrics)
    return Case(model, inputs(), np.eye(CLASSES, dtype="float32")[labels()])


@configuration(128, 2)
def loss_scaling() -> Case:
    inner = keras.optimizers.SGD(0.1, momentum=0.9)
    return classifier(network(), optimizer=keras.optimizers.LossScaleOptimizer(inner, 2.0**10, dynamic_growth_steps=2))


@configuration(128, limit=HALF_LIMIT)
def mixed_float16() -> Case:
    half = [layers.Dense(16, "relu", dtype="mixed_float16"), layers.Dense(CLASSES, dtype="mixed_float16")]
    model = keras.Sequential([keras.Input((FEATURES,)), *half])
    return classifier(model, optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 2.0**10))


@configuration(7, 2)
def gradient_accumulation() -> Case:
    return classifier(network(), optimizer=keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=3))


@configuration(97)
def moving_average_of_weights() -> Case:
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=4)
    return classifier(network(), optimizer=optimizer)


@configuration(7, 3)
def clipping_decay_and_schedule() -> Case:
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 40)
    return classifier(network(), optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, global_clipnorm=0.5))


@configuration(7, 2)
def steps_per_execution() -> Case:
    return classifier(network(layers.BatchNormalization()), steps_per_execution=5)


@configuration(128, 3)
def without_jit() -> Case:
    return classifier(network(layers.BatchNormalization()), jit_compile=False)


@configuration(128)
def run_eagerly() -> Case:
    return classifier(network(layers.Dropout(0.4)), run_eagerly=True)


@configuration(97)
def validation_split() -> Case:
    case = classifier(network(layers.BatchNormalization()))
    case.fit["validation_split"] = 0.15
    return case


@configuration(128, 3)
def validation_data() -> Case:
    case = classifier(network(layers.Dropout(0.4)))
    case.fit |= {"validation_data": (inputs(rows=53) + 0.5, labels(rows=53)), "validation_batch_size": 17}
    return case


class Perturbed(keras.Sequential):
    """Has a training step of its own: the loss also at a point nearby, and a gradient by hand."""

    def train_step(self, state: Any, data: Any) -> Any:
        import jax

        x, y = data
        trainable, non_trainable, optimizer_variables, metrics_variables = state

        def loss_fn(trainable: Any) -> Any:
            near, _ = self.stateless_call(trainable, non_trainable, x + 0.1, training=True)
            logits, updates = self.stateless_call(trainable, non_trainable, x, training=True)
            return crossentropy()(y, logits) + 0.5 * crossentropy()(y, near), (logits, updates)

        (loss, (logits, updates)), gradients = jax.value_and_grad(loss_fn, has_aux=True)(trainable)
        trainable, optimizer_variables = self.optimizer.stateless_apply(optimizer_variables, gradients, trainable)
        logs, metrics_variables = self._update_metrics_variables(metrics_variables, loss, x, y, logits, None)
        return logs, (trainable, updates, optimizer_variables, metrics_variables)


@configuration(97, 2)
def custom_train_step() -> Case:
    return classifier(Perturbed([keras.Input((FEATURES,)), layers.Dense(16, "relu"), layers.Dense(CLASSES)]))


@configuration(100, 3)
def several_inputs_and_outputs() -> Case:
    image, number = keras.Input((6, 6, 1), name="image"), keras.Input((FEATURES,), name="number")
    joined = layers.Concatenate()([layers.Flatten()(image), number])
    hidden = layers.Dense(16, "relu")(joined)
    outputs = {"kind": layers.Dense(CLASSES, name="kind")(hidden), "size": layers.Dense(1, name="size")(hidden)}
    model = keras.Model([image, number], outputs)
    model.compile(
        keras.optimizers.SGD(0.05),
        {"kind": crossentropy(), "size": "mse"},
        loss_weights={"kind": 1.0, "size": 0.3},
        metrics={"kind": "accuracy", "size": "mae"},
    )
    x = {"image": inputs(6, 6, 1), "number": inputs()}
    return Case(model, x, {"kind": labels(), "size": inputs(1)})


@configuration(128, 2)
def convolutional_net() -> Case:
    hidden = [layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.MaxPooling2D()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *hidden, layers.Flatten(), layers.Dense(CLASSES)])
    return classifier(model, inputs(8, 8, 1))


@configuration(100)
def augmentation_and_noise() -> Case:
    model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.RandomFlip(),
            layers.GaussianNoise(0.2),
            layers.Flatten(),
            layers.GaussianDropout(0.2),
            layers.Dense(CLASSES),
        ]
    )
    return classifier(model, inputs(6, 6, 1))


@configuration(97)
def recurrent_net_with_masking() -> Case:
    x = inputs(6, 3)
    x[np.arange(6)[None] >= np.random.default_rng(3).integers(1, 7, ROWS)[:, None]] = 0
    model = keras.Sequential([keras.Input((6, 3)), layers.Masking(), layers.LSTM(8), layers.Dense(CLASSES)])
    return classifier(model, x)


@configuration(128)
def attention() -> Case:
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 8)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4, dropout=0.1)(x, x))
    model = keras.Model(tokens, layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x)))
    return classifier(model, np.random.default_rng(4).integers(0, 20, (ROWS, 6)).astype("int32"))


class Subclassed(keras.Model):
    """Makes its variables when it is first called."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = layers.Dense(16, "relu"), layers.BatchNormalization(), layers.Dense(CLASSES)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.norm(self.hidden(x), training=training))


@configuration(7, 3)
def subclassed_and_built_on_first_call() -> Case:
    return classifier(Subclassed())


@configuration(7, 3)
def fewer_rows_than_devices() -> Case:
    case = classifier(network(layers.BatchNormalization()))
    case.x, case.y = case.x[:5], case.y[:5]
    return case


class UnequalBatches(keras.utils.PyDataset):
    """Batches of 1, 14, 27, ... rows."""

    def __init__(self) -> None:
        super().__init__()
        self._edges = [0, 1, 15, 42, 82, 135, 201, ROWS]

    def __len__(self) -> int:
        return len(self._edges) - 1

    def __getitem__(self, i: int) -> Any:
        rows = slice(self._edges[i], self._edges[i + 1])
        return inputs()[rows], labels()[rows]


@configuration(100)
def PyDataset_of_unequal_batches() -> Case:
    case = classifier(network())
    case.x, case.y = UnequalBatches(), None
    case.fit["shuffle"] = False
    return case


@configuration(97, 2, 3)
def train_on_batch() -> Case:
    case = classifier(network(layers.BatchNormalization(), layers.Dropout(0.2)))

    def train(batch: int) -> dict[str, list[float]]:
        starts = range(0, ROWS, batch)
        logs = [case.model.train_on_batch(case.x[i : i + batch], case.y[i : i + batch]) for i in starts]
        return {"loss": [log[0] for log in logs], "accuracy": [log[1] for log in logs]}

    case.train = train
    return case
