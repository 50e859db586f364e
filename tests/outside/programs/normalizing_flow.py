"""A normalizing flow (RealNVP) turns two moons into a round cloud.

After https://keras.io/examples/generative/real_nvp/: affine coupling layers, each network a model of its own, the
likelihood as loss, regularised kernels. Here the loop is TensorFlow's custom one.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import make_moons

import replicax as rx  # tf

COUPLINGS, BATCH = 4, 64
MASKS = np.array([[0.0, 1.0], [1.0, 0.0]] * (COUPLINGS // 2))
strategy = rx.MirroredStrategy()  # +


def coupling():
    inputs = keras.Input((2,))
    penalty = keras.regularizers.l2(0.01)
    scale = layers.Dense(16, activation="tanh", kernel_regularizer=penalty)(inputs)
    shift = layers.Dense(16, activation="tanh", kernel_regularizer=penalty)(inputs)
    scale = layers.Dense(2, activation="tanh", kernel_regularizer=penalty)(scale)
    return keras.Model(inputs, [scale, layers.Dense(2, kernel_regularizer=penalty)(shift)])


class RealNVP(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.couplings = [coupling() for _ in range(COUPLINGS)]

    def call(self, x):
        log_determinant = 0.0
        for network, mask in zip(reversed(self.couplings), MASKS[::-1], strict=True):
            kept = x * mask
            scale, shift = network(kept)
            scale, shift = scale * (1 - mask), shift * (1 - mask)
            x = (x - shift) * ops.exp(-scale) * (1 - mask) + kept
            log_determinant = log_determinant - ops.sum(scale, axis=1)
        return x, log_determinant


def main():
    points, _ = make_moons(380, noise=0.05, random_state=0)
    points = points.astype(keras.config.floatx())
    batches = [points[i : i + BATCH] for i in range(0, len(points), BATCH)]
    # - dataset = batches
    dataset = strategy.distribute_dataset(batches)  # +
    with strategy.scope():  # +
        model = RealNVP()
        optimizer = keras.optimizers.Adam(3e-3)

    def train_step(x):
        def loss_fn():  # tf
            z, log_determinant = model(x, training=True)
            likelihood = -0.5 * ops.sum(ops.square(z), axis=1) - np.log(2 * np.pi) + log_determinant
            # - return -ops.mean(likelihood) + sum(model.losses)
            return rx.compute_average_loss(-likelihood) + rx.scale_regularization_loss(model.losses)  # +

        loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()  # tf
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    # - step = rx.function(train_step)
    @rx.function  # +
    def step(x):  # +
        return strategy.reduce("sum", strategy.run(train_step, args=(x,)), axis=None)  # +

    losses = [step(batch) for _ in range(2) for batch in dataset]
    return model.get_weights(), losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
