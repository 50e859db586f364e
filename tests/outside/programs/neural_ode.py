"""A latent ODE: a recurrent encoder reads a spiral's beginning, and an integrator goes on from there.

After https://docs.kidger.site/diffrax/examples/neural_ode/ and https://implicit-layers-tutorial.org/neural_odes/: both
the encoder and the fourth-order Runge-Kutta steps are `jax.lax.scan`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx  # +

BATCH, SEEN, STEPS, DT, UNITS = 32, 6, 10, 0.1, 24
strategy = rx.MirroredStrategy()  # +
tx = optax.adam(optax.cosine_decay_schedule(1e-2, 12))


def spirals(count):
    rng = np.random.default_rng(0)
    phase, speed = rng.uniform(0, 6, (count, 1)), rng.uniform(0.5, 2, (count, 1))
    time = DT * np.arange(SEEN + STEPS)
    radius = np.exp(-0.3 * time)
    angle = phase + speed * time
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).astype("float32")


def init_params(key):
    shapes = {
        "in": (2, UNITS),
        "rec": (UNITS, UNITS),
        "out": (UNITS, 4),
        "f1": (4, UNITS),
        "f2": (UNITS, 4),
        "read": (4, 2),
    }
    keys = jax.random.split(key, len(shapes))
    return {name: jax.random.normal(k, s) / s[0] ** 0.5 for k, (name, s) in zip(keys, shapes.items(), strict=True)}


def encode(params, points):
    def read(hidden, point):
        return jnp.tanh(point @ params["in"] + hidden @ params["rec"]), None

    start = jnp.zeros((points.shape[0], UNITS))
    hidden, _ = jax.lax.scan(read, start, points.swapaxes(0, 1))
    return hidden @ params["out"]


def integrate(params, state):
    def field(z):
        return jnp.tanh(z @ params["f1"]) @ params["f2"]

    def runge_kutta(z, _):
        k1 = field(z)
        k2 = field(z + DT / 2 * k1)
        k3 = field(z + DT / 2 * k2)
        k4 = field(z + DT * k3)
        z = z + DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return z, z @ params["read"]

    return jax.lax.scan(runge_kutta, state, None, length=STEPS)[1].swapaxes(0, 1)


def loss_fn(params, paths):
    error = integrate(params, encode(params, paths[:, :SEEN])) - paths[:, SEEN:]
    return jnp.sum(jnp.mean(jnp.square(error), axis=(1, 2))) / BATCH


@jax.jit
def train_step(state, paths):
    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params, paths)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def main():
    params = init_params(jax.random.key(0))
    state = params, tx.init(params)
    paths = spirals(106)
    batches = [paths[i : i + BATCH] for i in range(0, len(paths), BATCH)]
    # - dataset = batches
    dataset = strategy.distribute_dataset(batches)  # +
    state = strategy.replicate(state)  # +
    losses = []
    for _ in range(3):
        for batch in dataset:
            # - state, loss = train_step(state, batch)
            state, loss = strategy.run(train_step, args=(state, batch))  # +
            # - losses.append(loss)
            losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return state[0], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
