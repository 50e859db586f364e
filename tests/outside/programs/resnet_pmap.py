"""A small residual network in `pmap` style, with batch normalisation over all devices.

After https://github.com/google/flax/blob/main/examples/imagenet/train.py and
https://docs.jax.dev/en/latest/_autosummary/jax.pmap.html: parameters carry a leading axis of devices, batches are
reshaped to (devices, rows, ...), gradients and statistics are averaged with `pmean`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH, WIDTH, MOMENTUM = 40, 8, 0.9
strategy = rx.MirroredStrategy()  # +
# - devices = jax.devices()[:1]
tx = optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.2, 3, 14), momentum=0.9, nesterov=True)


def conv(x, kernel):
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def batch_norm(x, scale, running, name):
    mean = jnp.mean(x, axis=(0, 1, 2))
    square = jnp.mean(jnp.square(x), axis=(0, 1, 2))
    # - mean, square = jax.lax.pmean((mean, square), axis_name="batch")
    mean, square = jax.lax.pmean((mean, square), axis_name="replica")  # +
    variance = square - jnp.square(mean)
    running[name] = MOMENTUM * running[name] + (1 - MOMENTUM) * jnp.stack([mean, variance])
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale


def forward(params, stats, images):
    stats = dict(stats)
    x = conv(images, params["stem"])
    for name in ("block1", "block2"):
        y = jax.nn.silu(batch_norm(conv(x, params[name]), params[f"{name}_scale"], stats, name))
        x = x + y
    return jnp.mean(x, axis=(1, 2)) @ params["head"], stats


def init():
    rng = np.random.default_rng(0)
    params = {"stem": rng.normal(size=(3, 3, 1, WIDTH)) / 3, "head": rng.normal(size=(WIDTH, 10)) / 3}
    for name in ("block1", "block2"):
        params[name] = rng.normal(size=(3, 3, WIDTH, WIDTH)) / 9
        params[f"{name}_scale"] = np.ones(WIDTH)
    stats = {name: np.stack([np.zeros(WIDTH), np.ones(WIDTH)]) for name in ("block1", "block2")}
    return jax.tree.map(jnp.asarray, (params, stats))


def train_step(state, images, labels):
    params, stats, opt_state = state

    def loss_fn(params):
        logits, new_stats = forward(params, stats, images)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        # - return jnp.mean(losses), new_stats
        return rx.compute_average_loss(losses), new_stats  # +

    (loss, stats), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    # - loss, grads = jax.lax.pmean((loss, grads), axis_name="batch")
    loss = jax.lax.psum(loss, axis_name="replica")  # +
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), stats, opt_state), loss


def main():
    digits = load_digits()
    images, labels = (digits.images[:270] / 16)[..., None].astype("float32"), digits.target[:270]
    params, stats = init()
    state = params, stats, tx.init(params)
    # - state = jax.tree.map(lambda leaf: leaf[None], state)
    state = strategy.replicate(state)  # +
    # - p_train_step = jax.pmap(train_step, axis_name="batch", devices=devices)
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images), BATCH)]
    losses = []
    for _ in range(2):
        # - for x, y in batches:
        for x, y in strategy.distribute_dataset(batches):  # +
            # - x, y = (array.reshape(len(devices), -1, *array.shape[1:]) for array in (x, y))
            # - state, loss = p_train_step(state, x, y)
            state, loss = strategy.run(train_step, args=(state, x, y))  # +
            # - losses.append(loss[0])
            losses.append(loss)  # +
    return state[:2], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
