"""A GAN: a generator of digits and a discriminator, each with an optimizer of its own.

After https://www.tensorflow.org/tutorials/generative/dcgan: both losses from the same forward pass, two tapes. The
noise comes with the batch, so that a row has the same noise on any number of devices.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops
from sklearn.datasets import load_digits

import replicax as rx  # tf

NOISE, BATCH = 8, 32
strategy = rx.MirroredStrategy()  # +


def generator_model():
    return keras.Sequential(
        [
            keras.Input((NOISE,)),
            layers.Dense(2 * 2 * 16, use_bias=False),
            layers.LayerNormalization(),
            layers.LeakyReLU(),
            layers.Reshape((2, 2, 16)),
            layers.Conv2DTranspose(8, 4, strides=2, padding="same", activation="tanh", use_bias=False),
            layers.Conv2DTranspose(1, 4, strides=2, padding="same", activation="tanh", use_bias=False),
        ]
    )


def discriminator_model():
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(8, 4, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def batches():
    images = (load_digits().images[:206] / 8 - 1)[..., None].astype("float32")
    noise = np.random.default_rng(0).normal(size=(len(images), NOISE)).astype("float32")
    return [(images[i : i + BATCH], noise[i : i + BATCH]) for i in range(0, len(images), BATCH)]


# - cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True)
binary_cross_entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")  # +


def cross_entropy(labels, logits):  # +
    return rx.compute_average_loss(binary_cross_entropy(labels, logits))  # +


def discriminator_loss(real, fake):
    return cross_entropy(ops.ones_like(real), real) + cross_entropy(ops.zeros_like(fake), fake)


def main():
    # - dataset = batches()
    dataset = strategy.distribute_dataset(batches())  # +
    with strategy.scope():  # +
        generator, discriminator = generator_model(), discriminator_model()
        generator_optimizer, discriminator_optimizer = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(1e-3)

    def train_step(images, noise):
        def generator_loss():  # tf
            fake = discriminator(generator(noise, training=True), training=True)
            return cross_entropy(ops.ones_like(fake), fake)

        def critic_loss():  # tf
            generated = generator(noise, training=True)
            return discriminator_loss(discriminator(images, training=True), discriminator(generated, training=True))

        gen_loss, gen_grads = rx.value_and_grad(generator_loss, generator.trainable_variables)()  # tf
        disc_loss, disc_grads = rx.value_and_grad(critic_loss, discriminator.trainable_variables)()  # tf
        generator_optimizer.apply_gradients(zip(gen_grads, generator.trainable_variables, strict=True))
        discriminator_optimizer.apply_gradients(zip(disc_grads, discriminator.trainable_variables, strict=True))
        return gen_loss, disc_loss

    # - step = rx.function(train_step)
    @rx.function  # +
    def step(images, noise):  # +
        return strategy.reduce("sum", strategy.run(train_step, args=(images, noise)), axis=None)  # +

    losses = []
    for images, noise in dataset:
        losses.extend(step(images, noise))
    return [generator.get_weights(), discriminator.get_weights()], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
