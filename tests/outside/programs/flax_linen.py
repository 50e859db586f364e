"""A classifier in flax's style: a linen module, a `TrainState`, and batch normalisation over all devices.

After https://github.com/google/flax/blob/main/examples/mnist/train.py and
https://github.com/google/flax/blob/main/examples/imagenet/train.py: the state is a pytree with methods, the moving
statistics are a collection of variables of its own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import train_state
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH = 40
strategy = rx.MirroredStrategy()  # +


class TrainState(train_state.TrainState):
    batch_stats: Any


class CNN(nn.Module):
    axis_name: str | None = None

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(features=8, kernel_size=(3, 3), use_bias=False)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9, axis_name=self.axis_name)(x)
        x = nn.avg_pool(nn.silu(x), window_shape=(2, 2), strides=(2, 2))
        return nn.Dense(features=10)(x.reshape((x.shape[0], -1)))


def create_train_state(model, key):
    variables = model.init(key, jnp.ones((1, 8, 8, 1)), train=False)
    tx = optax.sgd(0.1, momentum=0.9)
    return TrainState.create(
        apply_fn=model.apply, params=variables["params"], tx=tx, batch_stats=variables["batch_stats"]
    )


@jax.jit
def train_step(state, batch):
    def loss_fn(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updates = state.apply_fn(variables, batch["image"], train=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        # - return jnp.mean(losses), updates
        return rx.compute_average_loss(losses), updates  # +

    (loss, updates), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, batch_stats=updates["batch_stats"]), loss


def main():
    digits = load_digits()
    table = {"image": (digits.images[:250] / 16)[..., None].astype("float32"), "label": digits.target[:250]}
    batches = [jax.tree.map(lambda column, i=i: column[i : i + BATCH], table) for i in range(0, 250, BATCH)]
    # - state = create_train_state(CNN(), jax.random.key(0))
    state = create_train_state(CNN(axis_name="replica"), jax.random.key(0))  # +
    state = strategy.replicate(state)  # +
    losses = []
    for _ in range(2):
        # - for batch in batches:
        for batch in strategy.distribute_dataset(batches):  # +
            # - state, loss = train_step(state, batch)
            state, loss = strategy.run(train_step, args=(state, batch))  # +
            # - losses.append(loss)
            losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return [state.params, state.batch_stats], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
