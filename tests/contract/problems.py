"""Small trainings that are run under a strategy and compared with the same on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx

EVEN = (24,) * 20
# A full batch, then ones that divide by none, some or all of the numbers of replicas. Each size makes a program.
UNEVEN = (24, 23, 24, 6, 23, 24, 1, 8, 24, 6) * 2


def batches(sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns consecutive batches of the digits, shapes `(rows, 64)` float32 and `(rows,)` int32."""
    digits = load_digits()
    x, y = (digits.data / 16).astype(np.float32), digits.target.astype(np.int32)
    ends = np.cumsum(sizes)
    return [(x[end - size : end], y[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def train_keras(strategy: rx.Strategy, sizes: Sequence[int]) -> tuple[list[float], list[np.ndarray]]:
    """Trains a perceptron with Keras and Adam; returns the losses and the parameters."""
    with strategy.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
        )
        optimizer = keras.optimizers.Adam(1e-3)
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(batch: Any) -> Any:
        x, y = batch

        def loss_fn() -> Any:
            return rx.compute_average_loss(per_example(y, model(x, training=True)))

        loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @rx.function
    def step(batch: Any) -> Any:
        return strategy.reduce("sum", strategy.run(train_step, args=(batch,)))

    losses = [float(step(batch)) for batch in strategy.distribute_dataset(batches(sizes))]
    return losses, [np.asarray(variable.value) for variable in model.trainable_variables]


def train_optax(strategy: rx.Strategy, sizes: Sequence[int]) -> tuple[list[float], list[np.ndarray]]:
    """Trains the same perceptron in plain JAX; returns the losses and the parameters."""
    rng = np.random.default_rng(1)
    params = [rng.normal(0, 0.1, shape).astype(np.float32) for shape in ((64, 32), (32,), (32, 10), (10,))]
    optimizer = optax.adam(1e-3)
    state = strategy.replicate((params, optimizer.init(params)))

    def train_step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        x, y = batch
        rows = x.shape[0] * rx.get_replica_context().num_replicas_in_sync

        def loss_fn(params: Any) -> Any:
            logits = jax.nn.relu(x @ params[0] + params[1]) @ params[2] + params[3]
            return jnp.sum(optax.softmax_cross_entropy_with_integer_labels(logits, y)) / rows

        loss, gradients = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = optimizer.update(gradients, opt_state)
        return (optax.apply_updates(params, updates), opt_state), loss

    losses = []
    for batch in strategy.distribute_dataset(batches(sizes)):
        state, loss = strategy.run(train_step, args=(state, batch))
        losses.append(float(strategy.reduce("sum", loss)))
    return losses, [np.asarray(leaf) for leaf in jax.tree.leaves(state[0])]


def assert_same(
    ours: tuple[list[float], list[np.ndarray]], reference: tuple[list[float], list[np.ndarray]], tolerance: float = 1e-6
) -> None:
    """Checks that two trainings have equal losses and parameters.

    Parameters are compared tensor by tensor in norm: Adam divides by the size of the gradient, so an entry whose
    gradient is rounding error alone moves by rounding error times a large number, in any implementation.
    """
    np.testing.assert_allclose(ours[0], reference[0], rtol=tolerance * 5)
    for a, b in zip(ours[1], reference[1], strict=True):
        assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)
