"""Tabular data: who takes up an offer? Categories become embeddings, numbers are normalised.

After https://keras.io/examples/structured_data/wide_deep_cross_networks/ and
https://keras.io/examples/structured_data/structured_data_classification_from_scratch/: a dict of inputs, an adapted
normalisation, a cross of features, class weights.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

import replicax as rx  # +

BATCH = 32
JOBS = ["clerk", "nurse", "cook", "pilot", "smith"]
strategy = rx.MirroredStrategy()  # +


def customers(rows):
    rng = np.random.default_rng(0)
    table = {
        "age": rng.integers(18, 80, rows).astype("float32")[:, None],
        "balance": rng.lognormal(size=rows).astype("float32")[:, None],
        "job": rng.integers(0, len(JOBS), rows).astype("int32")[:, None],
        "married": rng.integers(0, 2, rows).astype("int32")[:, None],
    }
    score = 0.05 * (table["age"] - 50) + 0.5 * table["balance"] + 0.8 * (table["job"] == 3) - table["married"]
    return table, (score + 0.5 * rng.normal(size=score.shape) > 0).astype("float32")


def wide_and_deep(table):
    inputs = {name: keras.Input((1,), dtype=column.dtype, name=name) for name, column in table.items()}
    numbers = []
    for name in ("age", "balance"):
        normalize = layers.Normalization()
        normalize.adapt(table[name])
        numbers.append(normalize(inputs[name]))
    pairs = 2 * inputs["job"] + inputs["married"]
    crossed = layers.CategoryEncoding(2 * len(JOBS), output_mode="one_hot")(pairs)
    embedded = [
        layers.Flatten()(layers.Embedding(len(JOBS), 4)(inputs["job"])),
        layers.Flatten()(layers.Embedding(2, 2)(inputs["married"])),
    ]
    deep = layers.concatenate([*numbers, *embedded])
    deep = layers.Dropout(0.2, seed=1)(layers.Dense(32, activation="gelu")(deep))
    return keras.Model(inputs, layers.Dense(1, activation="sigmoid")(layers.concatenate([deep, crossed])))


def main():
    table, took_it = customers(330)
    with strategy.scope():  # +
        model = wide_and_deep(table)
        model.compile(keras.optimizers.RMSprop(3e-3), "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC()])
    history = model.fit(
        table, took_it, batch_size=BATCH, epochs=3, class_weight={0: 1.0, 1: 2.0}, validation_split=0.2, verbose=0
    )
    weights = [variable.value for variable in model.trainable_variables]
    return weights, history.history["loss"] + history.history["val_loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
