"""Super-resolution: a sub-pixel convolution makes digits twice as fine.

After https://keras.io/examples/vision/super_resolution_sub_pixel/: an ESPCN, pixels moved from channels to space, peak
signal-to-noise ratio as a metric, `train_on_batch` in place of `fit` for the warm-up.
"""

from __future__ import annotations

import keras
from keras import layers, ops
from sklearn.datasets import load_digits

import replicax as rx  # +

FACTOR, BATCH = 2, 32
strategy = rx.MirroredStrategy()  # +


def pixels_to_space(x):
    rows, height, width, channels = ops.shape(x)[0], x.shape[1], x.shape[2], x.shape[3] // FACTOR**2
    x = ops.reshape(x, (rows, height, width, FACTOR, FACTOR, channels))
    x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
    return ops.reshape(x, (rows, height * FACTOR, width * FACTOR, channels))


def signal_to_noise(y_true, y_pred):
    return -10 * ops.log10(ops.mean(ops.square(y_true - y_pred)))


def espcn():
    inputs = keras.Input((4, 4, 1))
    x = layers.Conv2D(16, 3, activation="tanh", padding="same", kernel_initializer="orthogonal")(inputs)
    x = layers.Conv2D(8, 3, activation="tanh", padding="same", kernel_initializer="orthogonal")(x)
    x = layers.Conv2D(FACTOR**2, 3, padding="same", kernel_initializer="orthogonal")(x)
    return keras.Model(inputs, layers.Lambda(pixels_to_space, output_shape=(8, 8, 1))(x))


def main():
    fine = (load_digits().images[:250] / 16)[..., None]
    coarse = fine.reshape(-1, 4, 2, 4, 2, 1).mean(axis=(2, 4))
    with strategy.scope():  # +
        model = espcn()
        schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, decay_steps=5, decay_rate=0.9)
        model.compile(keras.optimizers.Adam(schedule), "mse", metrics=[signal_to_noise])
    losses = [model.train_on_batch(coarse[:20], fine[:20])[0] for _ in range(2)]
    history = model.fit(coarse, fine, batch_size=BATCH, epochs=3, verbose=0)
    return model.get_weights(), [*losses, *history.history["loss"]]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
