"""A siamese network: do two drawings show the same digit?

After https://keras.io/examples/vision/siamese_contrastive/: one tower is used for both inputs, a distance layer
compares them, and the loss is a function of one's own with a margin.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH, MARGIN = 48, 1.0
strategy = rx.MirroredStrategy()  # +


def pairs(rows):
    digits = load_digits()
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, len(digits.images), (2, rows))
    images = (digits.images / 16)[..., None].astype("float32")
    differ = digits.target[first] != digits.target[second]
    return images[first], images[second], differ.astype("float32")[:, None]


def distance(towers):
    return ops.sqrt(ops.sum(ops.square(towers[0] - towers[1]), axis=1, keepdims=True) + 1e-6)


def contrastive_loss(differ, how_far):
    return ops.mean((1 - differ) * ops.square(how_far) + differ * ops.square(ops.maximum(MARGIN - how_far, 0)))


def siamese():
    tower = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(4, 3, activation="tanh"),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dense(10, activation="tanh"),
        ]
    )
    left, right = keras.Input((8, 8, 1)), keras.Input((8, 8, 1))
    far = layers.Lambda(distance, output_shape=(1,))([tower(left), tower(right)])
    return keras.Model([left, right], layers.Dense(1, activation="sigmoid")(layers.BatchNormalization()(far)))


def main():
    left, right, differ = pairs(250)
    with strategy.scope():  # +
        model = siamese()
        model.compile(loss=contrastive_loss, optimizer="RMSprop", metrics=["accuracy"])
    history = model.fit([left, right], differ, batch_size=BATCH, epochs=3, verbose=0)
    return model.get_weights(), history.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
