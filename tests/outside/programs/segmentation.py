"""Image segmentation: a small U-Net finds which pixels belong to a square and which to a disc.

After https://keras.io/examples/vision/oxford_pets_image_segmentation/: strided convolutions down, transposed ones up,
skip connections and batch normalisation, trained by `fit` from a `PyDataset`.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

import replicax as rx  # +

SIZE, BATCH, CLASSES = 16, 12, 3
strategy = rx.MirroredStrategy()  # +


class Shapes(keras.utils.PyDataset):
    """Batches of noisy images with a mask each; the last batch has fewer rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        across, down = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
        a, b = rng.integers(3, 13, (2, rows, 1, 1)), rng.integers(3, 13, (2, rows, 1, 1))
        square = np.maximum(abs(across - a[0]), abs(down - a[1])) <= 2
        disc = (across - b[0]) ** 2 + (down - b[1]) ** 2 <= 9
        self.masks = np.where(disc, 2, square.astype("int32"))[..., None]
        self.images = (self.masks + 0.3 * rng.normal(size=self.masks.shape)).astype("float32")

    def __len__(self) -> int:
        return -(-len(self.images) // BATCH)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return self.images[rows], self.masks[rows]


def conv(filters, strides=1):
    convolution = layers.SeparableConv2D(filters, 3, strides, padding="same", use_bias=False)
    return keras.Sequential([convolution, layers.BatchNormalization(), layers.ReLU()])


def unet():
    inputs = keras.Input((SIZE, SIZE, 1))
    first = conv(8)(inputs)
    second = conv(16, strides=2)(first)
    x = conv(16, strides=2)(second)
    x = layers.Conv2DTranspose(16, 3, 2, padding="same", activation="relu")(x)
    x = layers.concatenate([x, second])
    x = layers.UpSampling2D(2)(layers.Conv2DTranspose(8, 3, padding="same", activation="relu")(x))
    x = layers.concatenate([x, first])
    return keras.Model(inputs, layers.Conv2D(CLASSES, 3, padding="same", activation="softmax")(x))


def main():
    with strategy.scope():  # +
        model = unet()
        model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(Shapes(44), epochs=3, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
