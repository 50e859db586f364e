"""A variational autoencoder in flax's nnx: `nnx.jit` on one device, or `strategy.run` on all of them.

After flax's VAE example (Kingma and Welling, https://arxiv.org/abs/1312.6114), with the small digits of scikit-learn.
Two lines change. The noise of a row is drawn from the row's own seed, so that it does not depend on how many rows a
device has: the training is that of one device.

python examples/flax_vae.py
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import replicax as rx

BATCH = 128  # the global batch size: what all replicas process together in one step
LATENTS = 8


class VAE(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.encoder = nnx.Linear(64, 100, rngs=rngs)
        self.mean = nnx.Linear(100, LATENTS, rngs=rngs)
        self.log_variance = nnx.Linear(100, LATENTS, rngs=rngs)
        self.decoder = nnx.Linear(LATENTS, 100, rngs=rngs)
        self.out = nnx.Linear(100, 64, rngs=rngs)

    def __call__(self, x: jax.Array, noise: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        hidden = nnx.relu(self.encoder(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decode(mean + noise * jnp.exp(0.5 * log_variance)), mean, log_variance

    def decode(self, z: jax.Array) -> jax.Array:
        return self.out(nnx.relu(self.decoder(z)))


def train_step(model: VAE, optimizer: nnx.Optimizer, metric: nnx.metrics.Average, images, seeds):
    noise = jax.vmap(lambda seed: jax.random.normal(jax.random.key(seed), (LATENTS,)))(seeds)

    def loss_fn(model: VAE):
        logits, mean, log_variance = model(images, noise)
        error = optax.sigmoid_binary_cross_entropy(logits, images).sum(axis=1)
        divergence = -0.5 * jnp.sum(1 + log_variance - jnp.square(mean) - jnp.exp(log_variance), axis=1)
        losses = error + divergence
        return losses.sum() / BATCH, losses

    (_, losses), grads = nnx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    metric.update(loss=losses)


def train(epochs: int, strategy: rx.Strategy | None = None) -> tuple[VAE, list[float]]:
    """Returns the trained model, and the mean loss of each epoch."""
    images = (load_digits().data / 16).astype("float32")
    model = VAE(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    metric = nnx.metrics.Average("loss")
    history = []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        rows = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]  # the last batch has five rows
        batches = [(images[some], some + epoch * len(images)) for some in rows]
        if strategy is None:  # flax by itself
            step = nnx.jit(train_step)
            for batch in batches:
                step(model, optimizer, metric, *batch)
        else:  # two lines
            for batch in strategy.distribute_dataset(batches):
                strategy.run(train_step, args=(model, optimizer, metric, *batch))
        history.append(float(metric.compute()))
        metric.reset()
    return model, history


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    rx.config.set_virtual_devices(8)  # only to try it without accelerators; real GPUs are used where there are some

    strategy = rx.MirroredStrategy()
    model, history = train(args.epochs, strategy)
    for epoch, loss in enumerate(history, 1):
        print(f"epoch {epoch}: loss {loss:.4f} on {strategy.num_replicas_in_sync} replicas")
    drawn = jax.nn.sigmoid(model.decode(jnp.zeros((1, LATENTS)))).reshape(8, 8)
    print("\n".join("".join(" .:-=+*#"[int(7.99 * pixel)] for pixel in row) for row in np.asarray(drawn)))


if __name__ == "__main__":
    main()
