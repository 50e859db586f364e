"""A model with batch normalisation under a strategy equals what its formula says, replica by replica."""

from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from tests.contract.problems import batches

MOMENTUM, EPSILON, RATE = 0.9, 1e-3, 0.1
ROWS, STEPS = 24, 5


def by_hand(replicas: int, kernel: np.ndarray, head: np.ndarray) -> dict[str, np.ndarray]:
    """Trains with SGD in plain JAX: each replica normalises its own rows; statistics are averaged."""
    params = {"kernel": kernel, "gamma": np.ones(8, np.float32), "beta": np.zeros(8, np.float32), "head": head}
    mean, variance = jnp.zeros(8), jnp.ones(8)

    def replica_loss(params: Any, x: jax.Array, y: jax.Array) -> Any:
        h = x @ params["kernel"]
        m, v = jnp.mean(h, axis=0), jnp.var(h, axis=0)
        normal = (h - m) / jnp.sqrt(v + EPSILON) * params["gamma"] + params["beta"]
        log_p = jax.nn.log_softmax(jax.nn.relu(normal) @ params["head"])
        return -jnp.sum(log_p[jnp.arange(len(y)), y]) / ROWS, (m, v)

    for x, y in batches((ROWS,) * STEPS):
        xs, ys = x.reshape(replicas, -1, 64), y.reshape(replicas, -1)
        gradients, (m, v) = jax.vmap(jax.grad(replica_loss, has_aux=True), in_axes=(None, 0, 0))(params, xs, ys)
        params = {name: params[name] - RATE * gradients[name].sum(axis=0) for name in params}
        mean = MOMENTUM * mean + (1 - MOMENTUM) * m.mean(axis=0)
        variance = MOMENTUM * variance + (1 - MOMENTUM) * v.mean(axis=0)
    return {**params, "mean": mean, "variance": variance}


def with_strategy(strategy: rx.Strategy, kernel: np.ndarray, head: np.ndarray) -> dict[str, np.ndarray]:
    """Trains the same with Keras layers under `strategy`."""
    with strategy.scope():
        dense = keras.layers.Dense(8, use_bias=False)
        normalise = keras.layers.BatchNormalization(momentum=MOMENTUM, epsilon=EPSILON)
        out = keras.layers.Dense(10, use_bias=False)
        model = keras.Sequential([keras.Input((64,)), dense, normalise, keras.layers.ReLU(), out])
        optimizer = keras.optimizers.SGD(RATE)
        dense.kernel.assign(kernel)
        out.kernel.assign(head)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(x: Any, y: Any) -> None:
        def loss_fn() -> Any:
            return rx.compute_average_loss(per_example(y, model(x, training=True)), global_batch_size=ROWS)

        gradients = rx.grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for batch in strategy.distribute_dataset(batches((ROWS,) * STEPS)):
        strategy.run(train_step, args=batch)
    found = {
        "kernel": dense.kernel, "gamma": normalise.gamma, "beta": normalise.beta, "head": out.kernel,
        "mean": normalise.moving_mean, "variance": normalise.moving_variance,
    }  # fmt: skip
    return {name: np.asarray(variable.value) for name, variable in found.items()}


@pytest.mark.daily(2)
@pytest.mark.parametrize("replicas", [1, 2, 3, 8])
def test_batch_norm_is_that_of_each_replica_and_its_statistics_their_mean(replicas):
    rng = np.random.default_rng(0)
    kernel = rng.normal(0, 0.1, (64, 8)).astype(np.float32)
    head = rng.normal(0, 0.1, (8, 10)).astype(np.float32)
    strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)])
    ours, theirs = with_strategy(strategy, kernel, head), by_hand(replicas, kernel, head)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, atol=2e-6, err_msg=name)
