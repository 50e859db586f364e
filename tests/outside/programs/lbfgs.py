"""Logistic regression by L-BFGS, with a line search.

After https://optax.readthedocs.io/en/latest/_collections/examples/lbfgs.html: the solver calls the loss several times a
step, at points of its own choice, and keeps value and gradient for the next step. Each step sees all rows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer

import replicax as rx  # +

PENALTY, STEPS = 1e-2, 6
strategy = rx.MirroredStrategy()  # +
solver = optax.lbfgs(memory_size=5)


def table():
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    return x[:560].astype("float32"), y[:560].astype("float32")


def average_loss(params, x, y):
    losses = optax.sigmoid_binary_cross_entropy(x @ params["w"] + params["b"], y)
    # - return jnp.mean(losses) + PENALTY * optax.tree_utils.tree_norm(params, squared=True)
    penalty = rx.scale_regularization_loss(PENALTY * optax.tree_utils.tree_norm(params, squared=True))  # +
    loss = rx.compute_average_loss(losses) + penalty  # +
    return rx.get_replica_context().all_reduce("sum", loss)  # +


@jax.jit
def train_step(state, x, y):
    params, opt_state = state

    def loss_fn(params):
        return average_loss(params, x, y)

    value, grad = optax.value_and_grad_from_state(loss_fn)(params, state=opt_state)
    updates, opt_state = solver.update(grad, opt_state, params, value=value, grad=grad, value_fn=loss_fn)
    return (optax.apply_updates(params, updates), opt_state), value


def main():
    x, y = table()
    params = {"w": jnp.asarray(np.random.default_rng(0).normal(size=30) / 10), "b": jnp.zeros(())}
    state = params, solver.init(params)
    ((x, y),) = strategy.distribute_dataset([(x, y)])  # +
    state = strategy.replicate(state)  # +
    losses = []
    for _ in range(STEPS):
        # - state, loss = train_step(state, x, y)
        state, loss = strategy.run(train_step, args=(state, x, y))  # +
        losses.append(loss)
    return state[0], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
