"""MAML: learns a starting point from which one gradient step fits a new sine wave.

After https://github.com/keras-team/keras-io/blob/master/examples/vision/reptile.py and
https://blog.evjang.com/2019/02/maml-jax.html: the inner step is a gradient of its own, for each task, and the outer
gradient goes through it. Tasks are the rows of a batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx  # +

TASKS, SHOTS, INNER_RATE = 24, 10, 0.1
strategy = rx.MirroredStrategy()  # +
tx = optax.adam(3e-3)


def sine_tasks(count, rng):
    """Batches of tasks: points to adapt to, points to be judged by, each of shape (tasks, 2, shots, 1)."""
    for number in range(count):
        tasks = TASKS if number < count - 1 else 10
        phase = rng.uniform(0, np.pi, (tasks, 1, 1, 1))
        x = rng.uniform(-5, 5, (tasks, 2, SHOTS, 1))
        yield x.astype("float32"), np.sin(x + phase).astype("float32")


def init_params(key):
    keys = jax.random.split(key, 2)
    return {
        "w1": jax.random.normal(keys[0], (1, 40)),
        "b1": jnp.zeros(40),
        "w2": jax.random.normal(keys[1], (40, 1)) / 40**0.5,
        "b2": jnp.zeros(1),
    }


def error(params, x, y):
    hidden = jnp.tanh(x @ params["w1"] + params["b1"])
    return jnp.mean(jnp.square(hidden @ params["w2"] + params["b2"] - y))


def adapted(params, x, y):
    grads = jax.grad(error)(params, x, y)
    return jax.tree.map(lambda p, g: p - INNER_RATE * g, params, grads)


def meta_loss(params, x, y):
    params = jax.lax.pcast(params, "replica", to="varying")  # +

    def task_loss(x, y):
        return error(adapted(params, x[0], y[0]), x[1], y[1])

    return jnp.sum(jax.vmap(task_loss)(x, y)) / TASKS


@jax.jit
def train_step(state, x, y):
    params, opt_state = state
    loss, grads = jax.value_and_grad(meta_loss)(params, x, y)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def main():
    params = init_params(jax.random.key(0))
    state = params, tx.init(params)
    batches = list(sine_tasks(12, np.random.default_rng(0)))
    state = strategy.replicate(state)  # +
    losses = []
    # - for x, y in batches:
    for x, y in strategy.distribute_dataset(batches):  # +
        # - state, loss = train_step(state, x, y)
        state, loss = strategy.run(train_step, args=(state, x, y))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return state[0], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
