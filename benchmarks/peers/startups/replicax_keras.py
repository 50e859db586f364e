"""The Keras loop under our strategy."""

import time

import jax
import keras
import numpy as np

import replicax as rx

strategy = rx.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((784,))] + [keras.layers.Dense(n, "relu") for n in (700, 500)] + [keras.layers.Dense(10)]
    )
    optimizer = keras.optimizers.Adam(1e-3)
per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")


def replica_step(batch):
    x, y = batch

    def loss_fn():
        return rx.compute_average_loss(per_example(y, model(x, training=True)), global_batch_size=128)

    loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@rx.function
def step(batch):
    return strategy.reduce("sum", strategy.run(replica_step, args=(batch,)))


(batch,) = strategy.distribute_dataset([(np.ones((128, 784), np.float32), np.zeros(128, np.int32))])
loss = step(batch)
jax.block_until_ready((loss, [variable.value for variable in model.variables]))
print(time.time())
