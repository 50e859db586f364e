"""A loop of plain JAX: the state goes in and comes out."""

import jax
import jax.numpy as jnp
import numpy as np

import replicax as rx

GLOBAL = 32
strategy = rx.MirroredStrategy()
replicas = strategy.num_replicas_in_sync
draws = np.random.default_rng(2)
state = {
    "w": draws.normal(size=(8, 16)).astype("float32") / 3,
    "v": draws.normal(size=(16,)).astype("float32") / 4,
}
x = draws.normal(size=(256, 8)).astype("float32")
y = np.abs(x).sum(1)


def loss_fn(state, rows, targets):
    hidden = rx.probe("hidden", jnp.tanh(rows @ state["w"]))
    return jnp.sum(jnp.square(hidden @ state["v"] - targets)) / GLOBAL


def step(state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(state, *batch)
    return jax.tree.map(lambda p, g: p - 0.05 * g, state, grads), loss


state = strategy.replicate(state)
for batch in strategy.distribute_dataset((x, y), batch_size=GLOBAL):
    state, loss = strategy.run(step, args=(state, batch))
    strategy.reduce("sum", loss)
