"""The smallest custom loop: one unit learns that the label of 1 is 1.

This is the example of TensorFlow's guide to `tf.distribute`, line by line, and it prints the guide's losses.

    python examples/custom_loop_seed.py
"""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import numpy as np

import replicax as rx

rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

mirrored_strategy = rx.MirroredStrategy()

BATCH_SIZE_PER_REPLICA = 5
GLOBAL_BATCH_SIZE = BATCH_SIZE_PER_REPLICA * mirrored_strategy.num_replicas_in_sync
STEPS = 20
INITIAL_WEIGHT = 1.582488  # drawn at random in the guide's run; from here on everything is determined

# Create the model and the optimizer inside the scope, so that their variables are mirrored.
with mirrored_strategy.scope():
    weight = keras.initializers.Constant(INITIAL_WEIGHT)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer=weight)])
    optimizer = keras.optimizers.SGD()

# The pair ([1.], [1.]) over and over, in global batches. Each batch is split over the replicas.
features = labels = np.ones((STEPS * GLOBAL_BATCH_SIZE, 1), "float32")
dist_dataset = mirrored_strategy.distribute_dataset((features, labels), batch_size=GLOBAL_BATCH_SIZE)

loss_object = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")


def compute_loss(labels, predictions):
    return rx.compute_average_loss(loss_object(labels, predictions), global_batch_size=GLOBAL_BATCH_SIZE)


def train_step(inputs):
    features, labels = inputs

    def loss_fn():
        return compute_loss(labels, model(features, training=True))

    loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@rx.function
def distributed_train_step(dist_inputs):
    per_replica_losses = mirrored_strategy.run(train_step, args=(dist_inputs,))
    return mirrored_strategy.reduce(rx.ReduceOp.SUM, per_replica_losses, axis=None)


# Over the whole dataset:
for dist_inputs in dist_dataset:
    print(distributed_train_step(dist_inputs))

# Or with an iterator, for a number of steps:
iterator = iter(dist_dataset)
for _ in range(10):
    print(distributed_train_step(next(iterator)))
