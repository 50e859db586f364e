"""A custom training loop in plain JAX with optax: state goes in and comes out as pytrees.

python examples/custom_loop_optax.py
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx

rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

BATCH = 128  # the global batch size: what all replicas process together in one step
LAYERS = (64, 700, 500, 10)
optimizer = optax.adam(1e-3)


# The model, the loss and the step are ordinary JAX. Nothing in them knows of replicax.


def init_params(key):
    keys = jax.random.split(key, len(LAYERS) - 1)
    return [
        {"w": jax.random.normal(k, (n, m)) * (2 / n) ** 0.5, "b": jnp.zeros(m)}
        for k, n, m in zip(keys, LAYERS[:-1], LAYERS[1:], strict=True)
    ]


def logits_of(params, x):
    *hidden, last = params
    for layer in hidden:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


def loss_fn(params, x, y):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, x), y)
    return losses.sum() / BATCH  # by the global batch size, so that the replicas' losses add up to the batch's


def train_step(state, batch):  # one replica's view: all of the state, its share of the rows
    params, opt_state = state
    # The parameters are the same on all replicas, so JAX sums their gradients over the replicas by itself.
    loss, grads = jax.value_and_grad(loss_fn)(params, *batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def count_correct(params, batch):
    x, y = batch
    return jnp.sum(logits_of(params, x).argmax(axis=1) == y)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=3)
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    train, test = np.split(np.random.default_rng(0).permutation(len(labels)), [4 * len(labels) // 5])

    strategy = rx.MirroredStrategy()  # every local device
    train_batches = strategy.distribute_dataset((images[train], labels[train]), batch_size=BATCH)
    test_batches = strategy.distribute_dataset((images[test], labels[test]), batch_size=BATCH)

    params = init_params(jax.random.key(0))
    state = strategy.replicate((params, optimizer.init(params)))  # a copy on every device

    for epoch in range(args.epochs):
        losses = []
        for batch in train_batches:
            # Donated, the old state's memory becomes the new one's.
            state, loss = strategy.run(train_step, args=(state, batch), donate_argnums=(0,))
            losses.append(strategy.reduce("sum", loss, axis=None))
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}")

    params, _ = state
    correct = sum(
        int(strategy.reduce("sum", strategy.run(count_correct, args=(params, batch)), axis=None))
        for batch in test_batches
    )
    print(f"test accuracy {correct / len(test):.3f}")


if __name__ == "__main__":
    main()
