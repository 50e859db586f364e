"""A loop that computes in bfloat16, on batches that do not divide."""

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx

GLOBAL = 30
keras.utils.set_random_seed(7)
strategy = rx.MirroredStrategy(precision="bf16")
replicas = strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)])
    model.build((None, 8))
    optimizer = keras.optimizers.SGD(0.02)
x = np.random.default_rng(0).normal(size=(300, 8)).astype("float32")
y = np.square(x).sum(1, keepdims=True)


def batches():
    for start in range(0, len(x), GLOBAL):
        yield x[start : start + GLOBAL], y[start : start + GLOBAL]


def step(batch):
    rows, targets = batch

    def loss_fn():
        losses = jnp.square(model(rows).astype("float32") - targets)[:, 0]
        return rx.compute_average_loss(losses, global_batch_size=GLOBAL)

    loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


for batch in strategy.distribute_dataset(batches):
    strategy.reduce("sum", strategy.run(step, args=(batch,)))
