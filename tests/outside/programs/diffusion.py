"""A diffusion model of points on a spiral, with an exponential moving average of its parameters.

After https://keras.io/examples/generative/ddpm/ and https://github.com/acids-ircam/diffusion_models: the network
guesses the noise that was mixed into a point. Noise and times are drawn with the batch; samples come from the averaged
parameters.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import replicax as rx  # +

BATCH, TIMES, WIDTH, DECAY = 64, 50, 32, 0.95
strategy = rx.MirroredStrategy()  # +
kept = jnp.cumprod(1 - jnp.linspace(1e-4, 0.05, TIMES))
tx = optax.MultiSteps(optax.adam(5e-3), every_k_schedule=2)


def noisy_batches(epochs):
    rng = np.random.default_rng(0)
    angle = rng.uniform(1, 3 * np.pi, 340)
    points = (np.stack([angle * np.cos(angle), angle * np.sin(angle)], axis=1) / 9).astype("float32")
    for _ in range(epochs):
        for i in range(0, len(points), BATCH):
            x = points[i : i + BATCH]
            yield {"x": x, "noise": rng.normal(size=x.shape).astype("float32"), "time": rng.integers(0, TIMES, len(x))}


def init_params(key):
    keys = jax.random.split(key, 3)
    return {
        "time": jax.random.normal(keys[0], (TIMES, WIDTH)),
        "in": jax.random.normal(keys[1], (2, WIDTH)),
        "out": jax.random.normal(keys[2], (WIDTH, 2)) / WIDTH**0.5,
    }


def guess(params, x, time):
    return jax.nn.silu(x @ params["in"] + params["time"][time]) @ params["out"]


def loss_fn(params, batch):
    signal = kept[batch["time"]][:, None]
    mixed = jnp.sqrt(signal) * batch["x"] + jnp.sqrt(1 - signal) * batch["noise"]
    errors = jnp.mean(jnp.square(guess(params, mixed, batch["time"]) - batch["noise"]), axis=1)
    # - return jnp.mean(errors)
    return rx.compute_average_loss(errors)  # +


@jax.jit
def train_step(state, batch):
    params, average, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return (params, optax.incremental_update(params, average, 1 - DECAY), opt_state), loss


@jax.jit
def sample(params, x):
    def denoise(x, time):
        signal = kept[time]
        before = kept[time] / jnp.where(time > 0, kept[time - 1], 1.0)
        noise = guess(params, x, jnp.full(len(x), time))
        return (x - (1 - before) / jnp.sqrt(1 - signal) * noise) / jnp.sqrt(before), None

    return jax.lax.scan(denoise, x, jnp.arange(TIMES)[::-1])[0]


def main():
    params = init_params(jax.random.key(0))
    state = params, params, tx.init(params)
    # - dataset = noisy_batches(2)
    dataset = strategy.distribute_dataset(noisy_batches(2))  # +
    state = strategy.replicate(state)  # +
    losses = []
    for batch in dataset:
        # - state, loss = train_step(state, batch)
        state, loss = strategy.run(train_step, args=(state, batch))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    _, average, _ = state
    return [average, sample(average, jax.random.normal(jax.random.key(1), (5, 2)))], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
