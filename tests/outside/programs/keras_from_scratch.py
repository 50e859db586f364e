"""A Keras loop from scratch in JAX: variables travel as lists, through `stateless_call` and `stateless_apply`.

After https://keras.io/guides/writing_a_custom_training_loop_in_jax/: a classifier with batch normalisation's moving
statistics and a metric whose state is handed on from step to step.
"""

from __future__ import annotations

import jax
import keras
from keras import layers
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH = 48
strategy = rx.MirroredStrategy()  # +


def classifier():
    inputs = keras.Input((64,))
    hidden = layers.GroupNormalization(4)(layers.Dense(32, activation="gelu")(inputs))
    return keras.Model(inputs, layers.Dense(10)(hidden))


def main():
    images, labels = load_digits(return_X_y=True)
    images, labels = (images[:300] / 16).astype(keras.config.floatx()), labels[:300]
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images), BATCH)]
    model = classifier()
    optimizer = keras.optimizers.Adam(3e-3)
    optimizer.build(model.trainable_variables)
    # - loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    per_example_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")  # +

    def loss_fn(y, logits):  # +
        return rx.compute_average_loss(per_example_loss(y, logits))  # +

    def compute_loss_and_updates(trainable, non_trainable, x, y):
        logits, non_trainable = model.stateless_call(trainable, non_trainable, x, training=True)
        return loss_fn(y, logits), non_trainable

    grad_fn = jax.value_and_grad(compute_loss_and_updates, has_aux=True)

    @jax.jit
    def train_step(state, batch):
        trainable, non_trainable, optimizer_variables = state
        (loss, non_trainable), grads = grad_fn(trainable, non_trainable, *batch)
        trainable, optimizer_variables = optimizer.stateless_apply(optimizer_variables, grads, trainable)
        return loss, (trainable, non_trainable, optimizer_variables)

    state = model.trainable_variables, model.non_trainable_variables, optimizer.variables
    # - state = [[variable.value for variable in variables] for variables in state]
    state = strategy.replicate([[variable.value for variable in variables] for variables in state])  # +
    losses = []
    # - for batch in batches:
    for batch in strategy.distribute_dataset(batches):  # +
        # - loss, state = train_step(state, batch)
        loss, state = strategy.run(train_step, args=(state, batch))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return state[0], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
