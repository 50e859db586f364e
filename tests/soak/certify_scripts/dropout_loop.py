"""A loop with dropout."""

import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx

GLOBAL = 32
keras.utils.set_random_seed(8)
strategy = rx.MirroredStrategy(random_numbers="per_row")
replicas = strategy.num_replicas_in_sync
with strategy.scope():
    model = keras.Sequential(
        [keras.layers.Dense(32, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    model.build((None, 8))
    optimizer = keras.optimizers.Adam(1e-2)
x = np.random.default_rng(0).normal(size=(256, 8)).astype("float32")
y = np.square(x).sum(1, keepdims=True)


def step(batch):
    rows, targets = batch

    def loss_fn():
        losses = jnp.square(model(rows, training=True) - targets)[:, 0]
        return rx.compute_average_loss(losses, global_batch_size=GLOBAL)

    loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    return loss


@rx.function
def train(batch):
    return strategy.reduce("sum", strategy.run(step, args=(batch,)))


for batch in strategy.distribute_dataset((x, y), batch_size=GLOBAL):
    train(batch)
