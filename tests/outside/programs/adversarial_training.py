"""Adversarial training: the network learns from the images that would mislead it most.

After https://optax.readthedocs.io/en/latest/_collections/examples/adversarial_training.html: projected gradient descent
finds the perturbation (a gradient with respect to the *images*, not to the parameters), and the step trains on the
perturbed batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

import replicax as rx  # +

BATCH, EPSILON, STEP_SIZE, ATTACKS = 64, 0.2, 0.1, 3
strategy = rx.MirroredStrategy()  # +
tx = optax.adam(3e-3)


def init_params(key):
    keys = jax.random.split(key, 2)
    return {
        "w1": jax.random.normal(keys[0], (64, 32)) / 8,
        "b1": jnp.zeros(32),
        "w2": jax.random.normal(keys[1], (32, 10)) / 6,
        "b2": jnp.zeros(10),
    }


def logits_of(params, images):
    return jnp.tanh(images @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_fn(params, images, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, images), labels)
    # - return jnp.mean(losses)
    return rx.compute_average_loss(losses)  # +


def attacked(params, images, labels):
    """Climbs the loss by steps of equal length in each pixel, within EPSILON of the image."""

    def climb(_, perturbed):
        gradient = jax.grad(loss_fn, argnums=1)(params, perturbed, labels)
        perturbed = perturbed + STEP_SIZE * jnp.sign(gradient)
        return jnp.clip(perturbed, images - EPSILON, images + EPSILON)

    return jax.lax.fori_loop(0, ATTACKS, climb, images)


@jax.jit
def train_step(params, opt_state, batch):
    images, labels = batch
    perturbed = attacked(params, images, labels)
    loss, grads = jax.value_and_grad(loss_fn)(params, perturbed, labels)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def main():
    images, labels = load_digits(return_X_y=True)
    images, labels = (images[:410] / 16).astype("float32"), labels[:410]
    params = init_params(jax.random.key(0))
    opt_state = tx.init(params)
    batches = [(images[i : i + BATCH], labels[i : i + BATCH]) for i in range(0, len(images), BATCH)]
    # - dataset = batches
    dataset = strategy.distribute_dataset(batches)  # +
    params, opt_state = strategy.replicate((params, opt_state))  # +
    losses = []
    for batch in dataset:
        # - params, opt_state, loss = train_step(params, opt_state, batch)
        params, opt_state, loss = strategy.run(train_step, args=(params, opt_state, batch))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return params, losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
