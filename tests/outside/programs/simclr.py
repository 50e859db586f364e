"""SimCLR: two noisy views of a digit should lie closer to each other than to any other row of the batch.

After https://keras.io/examples/vision/semisupervised_simclr/ and
https://github.com/google-research/simclr/blob/master/objective.py: each row is compared with all rows of the *global*
batch, so the replicas must show each other their projections.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH, TEMPERATURE = 64, 0.2
strategy = rx.MirroredStrategy()  # +
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-3, weight_decay=1e-4))


def views():
    """Pairs of views; the last batch has fewer rows."""
    rng = np.random.default_rng(0)
    images = (load_digits().data[:596] / 16).astype("float32")
    for start in range(0, len(images), BATCH):
        rows = images[start : start + BATCH]
        yield tuple((rows + 0.2 * rng.normal(size=rows.shape)).astype("float32") for _ in range(2))


def init_params(key):
    keys = jax.random.split(key, 2)
    return [jax.random.normal(keys[0], (64, 48)) / 8, jax.random.normal(keys[1], (48, 16)) / 7]


def project(params, x):
    z = jax.nn.gelu(x @ params[0]) @ params[1]
    return z / jnp.linalg.norm(z, axis=1, keepdims=True)


def contrastive_loss(params, first, second):
    a, b = project(params, first), project(params, second)
    # - everyone, own = b, jnp.arange(len(b))
    context = rx.get_replica_context()  # +
    everyone = context.all_gather(b, axis=0)  # +
    own = context.replica_id_in_sync_group * len(b) + jnp.arange(len(b))  # +
    losses = optax.softmax_cross_entropy_with_integer_labels(a @ everyone.T / TEMPERATURE, own)
    return jnp.sum(losses) / BATCH


@jax.jit
def train_step(params, opt_state, first, second):
    loss, grads = jax.value_and_grad(contrastive_loss)(params, first, second)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def main():
    params = init_params(jax.random.key(0))
    opt_state = tx.init(params)
    # - dataset = list(views())
    dataset = strategy.distribute_dataset(list(views()))  # +
    params, opt_state = strategy.replicate((params, opt_state))  # +
    losses = []
    for first, second in dataset:
        # - params, opt_state, loss = train_step(params, opt_state, first, second)
        params, opt_state, loss = strategy.run(train_step, args=(params, opt_state, first, second))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return params, losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
