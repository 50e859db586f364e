"""What replicax costs over hand-written JAX: time of a training step, of an empty one, and memory.

    python benchmarks/overhead.py [--devices 8] [--rounds 15] [--steps 10]

The step is a 784-700-500-10 network with Adam and a global batch of 128. All variants run in turn in one process;
figures are medians. On a machine with GPUs it uses all of them.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
import jax
import numpy as np
import optax
from problem import EPSILON, LEARNING_RATE, ROWS, flat_weights
from timing import interleaved_medians, print_table

import replicax as rx


class KerasLoop:
    """The custom training loop with Keras under a strategy."""

    def __init__(self, strategy: rx.Strategy, batch: Any, sizes: tuple[int, ...] = hand.SIZES):
        import keras

        with strategy.scope():
            layers: list[Any] = [keras.layers.Dense(size, activation="relu") for size in sizes[1:-1]]
            model = keras.Sequential([keras.Input(sizes[:1]), *layers, keras.layers.Dense(sizes[-1])])
            optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)
            optimizer.build(model.trainable_variables)
            model.set_weights(flat_weights(sizes))
        per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

        def train_step(batch: Any) -> Any:
            x, y = batch

            def loss_fn() -> Any:
                return rx.compute_average_loss(per_example(y, model(x, training=True)), global_batch_size=ROWS)

            loss, gradients = rx.value_and_grad(loss_fn, model.trainable_variables)()
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @rx.function
        def step(batch: Any) -> Any:
            return strategy.reduce("sum", strategy.run(train_step, args=(batch,)))

        self.step, self.batch = step, batch
        self.variables = [*model.variables, *optimizer.variables]
        self.loss: Any = None

    def __call__(self) -> None:
        """Makes one step."""
        self.loss = self.step(self.batch)

    def last(self) -> float:
        """Returns the loss of the last step."""
        return float(self.loss)

    def wait(self) -> None:
        """Waits for the last step."""
        jax.block_until_ready(([variable.value for variable in self.variables], self.loss))

    def peak_bytes(self) -> int:
        """Returns what a step needs on all devices at once."""
        return hand.peak_bytes(self.step.lower(self.batch).compile())


class OptaxLoop:
    """The plain-JAX loop under a strategy: state goes in and comes out."""

    def __init__(self, strategy: rx.Strategy, batch: Any, sizes: tuple[int, ...] = hand.SIZES):
        params = hand.init_params(sizes)
        self.state = strategy.replicate((params, hand.adam().init(params)))
        self.batch = batch

        def train_step(state: Any, batch: Any) -> Any:
            params, opt_state = state
            loss, grads = jax.value_and_grad(lambda p: hand.loss_sum(p, *batch) / ROWS)(params)
            updates, opt_state = hand.adam().update(grads, opt_state)
            return (optax.apply_updates(params, updates), opt_state), loss

        @rx.function(donate_argnums=(0,))
        def step(state: Any, batch: Any) -> Any:
            state, loss = strategy.run(train_step, args=(state, batch))
            return state, strategy.reduce("sum", loss)

        self.step = step
        self.loss: Any = None

    def __call__(self) -> None:
        """Makes one step."""
        self.state, self.loss = self.step(self.state, self.batch)

    def last(self) -> float:
        """Returns the loss of the last step."""
        return float(self.loss)

    def wait(self) -> None:
        """Waits for the last step."""
        jax.block_until_ready((self.state, self.loss))

    def peak_bytes(self) -> int:
        """Returns what a step needs on all devices at once."""
        return hand.peak_bytes(self.step.lower(self.state, self.batch).compile())


def distributed_batch(strategy: rx.Strategy) -> Any:
    """Returns one global batch, split over the replicas."""
    (batch,) = strategy.distribute_dataset([hand.make_batch(ROWS)], rx.InputOptions(prefetch=0))
    return batch


def step_seconds(strategy: rx.Strategy, rounds: int, steps: int) -> tuple[dict[str, float], dict[str, int]]:
    """Measures a step of each variant: seconds, and peak bytes over all devices."""
    batch = distributed_batch(strategy)
    mesh = strategy.mesh
    variants: dict[str, Any] = {
        "hand-written shard_map": hand.HandWritten(
            hand.make_shard_map_step(mesh, ROWS), mesh, hand.SIZES, hand.make_batch(ROWS)
        ),
        "hand-written GSPMD": hand.HandWritten(
            hand.make_gspmd_step(mesh, ROWS), mesh, hand.SIZES, hand.make_batch(ROWS)
        ),
        "replicax, Keras loop": KerasLoop(strategy, batch),
        "replicax, optax loop": OptaxLoop(strategy, batch),
    }
    medians = interleaved_medians(variants, {name: v.wait for name, v in variants.items()}, rounds, steps)
    return medians, {name: variant.peak_bytes() for name, variant in variants.items()}


def dispatch_seconds(strategy: rx.Strategy, rounds: int) -> dict[str, float]:
    """Measures an empty step: what is left is the host's work."""
    bare = jax.jit(lambda: ())

    def empty() -> None:
        return None

    variants = {"bare jit": bare, "strategy.run": lambda: strategy.run(empty)}
    nothing = dict.fromkeys(variants, lambda: None)
    return interleaved_medians(variants, nothing, rounds, 1000)


def main() -> None:
    """Prints the tables and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps of a variant in each round")
    options = parser.parse_args()
    rx.config.set_virtual_devices(options.devices)
    strategy = rx.MirroredStrategy()

    medians, peaks = step_seconds(strategy, options.rounds, options.steps)
    by_hand = [name for name in medians if name.startswith("hand")]
    best, least = min(medians[name] for name in by_hand), min(peaks[name] for name in by_hand)
    rows = [
        (name, f"{medians[name] * 1e3:.2f}", f"{medians[name] / best:.3f}", f"{peaks[name] / 2**20:.1f}",
         f"{peaks[name] / least:.3f}")
        for name in medians
    ]  # fmt: skip
    print_table(f"one step on {strategy!r}", ("variant", "ms", "ratio", "MiB", "ratio"), rows)
    dispatch = dispatch_seconds(strategy, options.rounds)
    overhead = dispatch["strategy.run"] - dispatch["bare jit"]
    print(f"empty step: {dispatch['strategy.run'] * 1e6:.1f} us, bare jitted call {dispatch['bare jit'] * 1e6:.1f} us")
    ours = [peaks[name] for name in peaks if name.startswith("replicax")]
    print(f"RESULT overhead_keras_loop {medians['replicax, Keras loop'] / best:.3f}")
    print(f"RESULT overhead_optax_loop {medians['replicax, optax loop'] / best:.3f}")
    print(f"RESULT dispatch_overhead_us {overhead * 1e6:.1f}")
    print(f"RESULT memory_ratio {np.max(ours) / least:.3f}")


if __name__ == "__main__":
    main()
