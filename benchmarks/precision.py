"""`precision=` gives what Keras's own policy gives on one device: how nearly, for `fit` and for loops.

    python benchmarks/precision.py

Each case is trained by plain Keras (or optax) on one device under its own policy and, from the same seed, under a
strategy with `precision=`. The table shows the largest difference of the weights, in units of the dtype's rounding
error (`eps`) at the largest weight. RESULT counts the cases in which it is larger than the steps explain.
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
from timing import print_table

import replicax as rx

rx.config.set_virtual_devices(8)

STEPS, ROWS = 8, 32
POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
RATE = 1e-2
RNG = np.random.default_rng(0)
X = RNG.normal(size=(STEPS * ROWS - 3, 20)).astype("float32")  # the last batch does not divide
Y = X[:, :3].argmax(axis=1).astype("int32")


def model() -> keras.Model:
    """Returns a small network; its last layer computes in float32, as Keras's guide says."""
    keras.utils.set_random_seed(3)
    last = keras.layers.Dense(3, dtype="float32")
    return keras.Sequential([keras.Input((20,)), keras.layers.Dense(64, "relu"), last])


def fitted(strategy: rx.Strategy | None, policy: str) -> list[np.ndarray]:
    """Trains with `fit`; without a strategy on one device, under Keras's own policy."""
    made = _made(strategy, policy, model)
    made.compile(keras.optimizers.SGD(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    made.fit(X, Y, batch_size=ROWS, epochs=1, shuffle=False, verbose=0)
    return [np.asarray(value, "float32") for value in made.get_weights()]


def looped(strategy: rx.Strategy | None, policy: str) -> list[np.ndarray]:
    """Trains in a Keras loop, with a loss scale as float16 needs it."""

    def make() -> tuple[keras.Model, keras.optimizers.LossScaleOptimizer]:
        made = model()
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE))
        scaled.build(made.trainable_variables)
        return made, scaled

    trained = strategy or rx.OneDeviceStrategy("cpu:0")
    if strategy is None:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
    with trained.scope():
        made, scaled = make()
    if strategy is None:
        keras.config.set_dtype_policy(before)
    losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(x: jax.Array, y: jax.Array) -> None:
        def loss() -> jax.Array:
            return scaled.scale_loss(rx.compute_average_loss(losses(y, made(x, training=True))))

        scaled.apply(rx.grad(loss, made.trainable_variables)(), made.trainable_variables)

    for batch in trained.distribute_dataset((X, Y), batch_size=ROWS):
        trained.run(step, args=batch)
    return [np.asarray(value, "float32") for value in made.get_weights()]


def pytree(strategy: rx.Strategy | None, policy: str) -> list[np.ndarray]:
    """Trains a pytree with optax; without a strategy in plain JAX."""
    dtype = jnp.dtype(policy.removeprefix("mixed_"))
    rng = np.random.default_rng(1)
    first = {"up": rng.normal(size=(20, 64)) / 5, "down": rng.normal(size=(64, 3)) / 8}
    params = jax.tree.map(lambda value: jnp.asarray(value, jnp.float32), first)
    tx = optax.sgd(RATE)
    state = (params, tx.init(params))

    def cast(tree: object) -> object:
        if strategy is not None:
            return strategy.cast_to_compute(tree)
        floats = lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf  # noqa: E731
        return jax.tree.map(floats, tree)

    def loss(params: dict[str, jax.Array], x: jax.Array, y: jax.Array, rows: int | None) -> jax.Array:
        low, x = cast((params, x))
        logits = (jax.nn.relu(x @ low["up"]) @ low["down"]).astype(jnp.float32)
        each = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return jnp.mean(each) if rows is None else rx.compute_average_loss(each, global_batch_size=rows)

    def step(state: tuple, x: jax.Array, y: jax.Array, rows: int | None = None) -> tuple:
        params, moments = state
        updates, moments = tx.update(jax.grad(loss)(params, x, y, rows), moments, params)
        return optax.apply_updates(params, updates), moments

    if strategy is None:
        compiled = jax.jit(step)
        for start in range(0, len(X), ROWS):
            state = compiled(state, jnp.asarray(X[start : start + ROWS]), jnp.asarray(Y[start : start + ROWS]))
    else:
        state = strategy.replicate(state)
        sizes = [min(ROWS, len(X) - start) for start in range(0, len(X), ROWS)]
        for batch, rows in zip(strategy.distribute_dataset((X, Y), batch_size=ROWS), sizes, strict=True):
            state = strategy.run(step, args=(state, *batch), kwargs={"rows": rows})
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state[0])]


def _made(strategy: rx.Strategy | None, policy: str, make: Callable[[], keras.Model]) -> keras.Model:
    if strategy is not None:
        with strategy.scope():
            return make()
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        return make()
    finally:
        keras.config.set_dtype_policy(before)


def main() -> None:
    """Prints the table."""
    table, wrong, cases = [], 0, 0
    for name, policy in POLICIES.items():
        eps = float(jnp.finfo(policy.removeprefix("mixed_")).eps)
        for how in (fitted, looped, pytree):
            reference = how(None, policy)
            first = max(float(np.abs(value).max()) for value in reference)
            for devices in (1, 2, 8):
                found = how(rx.MirroredStrategy(devices, precision=name), policy)
                apart = max(float(np.abs(a - b).max()) for a, b in zip(found, reference, strict=True))
                units = apart / (eps * RATE * first)  # an update is the rate times a gradient of this rounding
                cases, wrong = cases + 1, wrong + (units > STEPS)
                table.append((name, how.__name__, str(devices), f"{apart:.1e}", f"{units:.2f}"))
    header = ("precision", "loop", "devices", "largest difference", f"in rounding errors ({STEPS} steps)")
    print_table("Against the plain libraries on one device", header, table)
    print(f"RESULT precision_cases {cases}")
    print(f"RESULT precision_wrong {wrong}")


if __name__ == "__main__":
    main()
