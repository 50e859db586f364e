"""A variational autoencoder of digits, with a `train_step` of its own.

After https://keras.io/examples/generative/vae/ and https://keras.io/guides/custom_train_step_in_jax/: a sampling layer
draws noise from a `SeedGenerator`, and the step is Keras's stateless one: variables in, variables out.
"""

from __future__ import annotations

import jax
import keras
from keras import layers, ops
from sklearn.datasets import load_digits

import replicax as rx  # +

LATENT, BATCH = 4, 64
strategy = rx.MirroredStrategy()  # +


class Sampling(layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(7)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class VAE(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(32, activation="tanh")
        self.mean = layers.Dense(LATENT)
        self.log_variance = layers.Dense(LATENT)
        self.sampling = Sampling()
        self.decoder = keras.Sequential([layers.Dense(32, activation="tanh"), layers.Dense(64, activation="sigmoid")])
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x):
        hidden = self.hidden(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decoder(self.sampling((mean, log_variance))), mean, log_variance

    def compute_loss_and_updates(self, trainable, non_trainable, x):
        (decoded, mean, log_variance), non_trainable = self.stateless_call(trainable, non_trainable, x)
        reconstruction = ops.mean(ops.sum(ops.binary_crossentropy(x, decoded), axis=1))
        divergence = -0.5 * ops.sum(1 + log_variance - ops.square(mean) - ops.exp(log_variance), axis=1)
        return reconstruction + ops.mean(divergence), non_trainable

    def train_step(self, state, data):
        trainable, non_trainable, optimizer, metrics = state
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        grad_fn = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)
        (loss, non_trainable), grads = grad_fn(trainable, non_trainable, x)
        trainable, optimizer = self.optimizer.stateless_apply(optimizer, grads, trainable)
        metrics = self.loss_tracker.stateless_update_state(metrics, loss)
        logs = {"loss": self.loss_tracker.stateless_result(metrics)}
        return logs, (trainable, non_trainable, optimizer, metrics)

    @property
    def metrics(self):
        return [self.loss_tracker]


def main():
    x = load_digits().data[:410] / 16
    with strategy.scope():  # +
        model = VAE()
        model.compile(optimizer=keras.optimizers.Adam(3e-3))
    history = model.fit(x, batch_size=BATCH, epochs=4, verbose=0)
    return model.get_weights(), history.history["loss"]


if __name__ == "__main__":
    print(*main()[1], sep="\n")
