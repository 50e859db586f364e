"""A loop that clips gradients and keeps an average of the weights."""

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx

GLOBAL = 32
keras.utils.set_random_seed(6)
strategy = rx.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
with strategy.scope():
    w = rx.Variable(np.random.default_rng(1).normal(size=(8, 4)).astype("float32"), name="w")
    average = rx.Variable(np.zeros((8, 4), "float32"), trainable=False, name="average")
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = np.abs(x[:, :4])


def clipped(gradient):
    return gradient / jnp.maximum(1.0, jnp.linalg.norm(gradient) / 0.05)


def step(batch):
    rows, targets = batch

    def loss_fn():
        losses = jnp.square(rows @ w - targets).sum(1)
        return rx.compute_average_loss(losses, global_batch_size=GLOBAL)

    loss, gradient = rx.value_and_grad(loss_fn, w)()
    gradient = clipped(gradient)
    w.assign_sub(0.1 * gradient)
    average.assign(0.9 * average + 0.1 * w)
    return loss


@rx.function
def train(batch):
    return strategy.reduce("sum", strategy.run(step, args=(batch,)))


for batch in strategy.distribute_dataset((x, y), batch_size=GLOBAL):
    train(batch)
