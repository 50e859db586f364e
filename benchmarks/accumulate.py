"""Gradient accumulation: 8 micro-batches in one step, compared with the large batch and with hand-written JAX.

    python benchmarks/accumulate.py [--devices 8] [--width 256] [--layers 6] [--rows 8192] [--steps 8]

A perceptron is trained with momentum in a custom loop under `MirroredStrategy`. The parameters after some steps are
compared with those of the whole batch in one piece, in norm, relative to what one device computes. The all-reduces are
counted in the compiled program: those in a loop would count once for each micro-batch. Memory is what XLA plans for
intermediate results on a device. The hand-written step is `jax.shard_map` around `jax.lax.scan` with one `jax.lax.psum`
of all gradients; both get batches that are on their devices already, and both update mirrored weights on each device
(`shard_update=False`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from timing import interleaved_medians

import replicax as rx
from replicax.collectives.hlo import collectives

RATE, MOMENTUM = 0.01, 0.9


def weights_of(width: int, layers: int) -> list[np.ndarray]:
    """Returns the first values of the weights."""
    rng = np.random.default_rng(0)
    return [rng.normal(0, width**-0.5, (width, width)).astype(np.float32) for _ in range(layers)]


def forward(weights: Any, x: jax.Array) -> jax.Array:
    """Returns a loss for each row."""
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.sum(x**2, axis=-1)


class WithReplicax:
    """The training with replicax.

    Args:
        devices: The number of devices.
        weights: The first values of the weights.
        steps: The number of micro-batches; 1 for the whole batch in one piece.
    """

    def __init__(self, devices: int, weights: list[np.ndarray], steps: int):
        self.strategy = rx.MirroredStrategy([f"cpu:{i}" for i in range(devices)], shard_update=False)
        with self.strategy.scope():
            self.weights = [rx.Variable(each) for each in weights]
            moments = [rx.Variable(np.zeros_like(each)) for each in weights]

        def loss_fn(x: jax.Array) -> jax.Array:
            return rx.compute_average_loss(forward([weight.value for weight in self.weights], x))

        value_and_grad = rx.value_and_grad(loss_fn, self.weights)
        accumulated = value_and_grad if steps == 1 else rx.accumulate_gradients(value_and_grad, steps)

        def replica_step(x: jax.Array) -> jax.Array:
            loss, gradients = accumulated(x)
            for weight, moment, gradient in zip(self.weights, moments, gradients, strict=True):
                moment.assign(MOMENTUM * moment + gradient)
                weight.assign_sub(RATE * moment)
            return loss

        @rx.function
        def step(x: Any) -> Any:
            return self.strategy.run(replica_step, args=(x,))

        self.step = step

    def placed(self, rows: np.ndarray) -> Any:
        """Returns a batch on the devices."""
        (batch,) = self.strategy.distribute_dataset([rows])
        return batch


class ByHand:
    """The same in plain JAX."""

    def __init__(self, devices: int, weights: list[np.ndarray], steps: int, rows: int):
        mesh = jax.make_mesh((devices,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        whole, self._cut = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
        self.state = jax.device_put((weights, [np.zeros_like(each) for each in weights]), whole)

        def summed(weights: Any, x: jax.Array) -> tuple[jax.Array, Any]:
            # Each device's own weights: then JAX does not sum the gradients of each micro-batch over the devices.
            own = jax.lax.pcast(weights, "data", to="varying")
            parts = x.reshape(steps, -1, x.shape[-1])

            def micro_batch(sums: Any, part: jax.Array) -> tuple[Any, None]:
                found = jax.value_and_grad(lambda weights: jnp.sum(forward(weights, part)) / rows)(own)
                return jax.tree.map(jnp.add, sums, found), None

            zeros = jax.lax.pcast(jax.tree.map(jnp.zeros_like, (jnp.float32(0), weights)), "data", to="varying")
            (loss, gradients), _ = jax.lax.scan(micro_batch, zeros, parts)
            return loss[None], jax.lax.psum(gradients, "data")

        def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            weights, moments = state
            split, same = PartitionSpec("data"), PartitionSpec()
            loss, gradients = jax.shard_map(summed, mesh=mesh, in_specs=(same, split), out_specs=(split, same))(
                weights, x
            )
            moments = [MOMENTUM * moment + gradient for moment, gradient in zip(moments, gradients, strict=True)]
            return ([w - RATE * moment for w, moment in zip(weights, moments, strict=True)], moments), loss

        self._step = jax.jit(step, donate_argnums=0)

    def step(self, x: jax.Array) -> jax.Array:
        """Makes a step."""
        self.state, loss = self._step(self.state, x)
        return loss

    def placed(self, rows: np.ndarray) -> jax.Array:
        """Returns a batch on the devices."""
        return jax.device_put(rows, self._cut)


def difference(found: list[Any], expected: list[Any]) -> float:
    """Returns the largest relative difference of two lists of arrays, in norm."""
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(found, expected, strict=True)]
    return float(max(np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs))


def all_reduces(text: str, steps: int) -> int:
    """Returns how many all-reduces a step makes: one in the body of a loop is made for each micro-batch."""
    entry = text[text.index("\nENTRY ") :]
    everywhere, once = (sum(each.kind == "all-reduce" for each in collectives(part)) for part in (text, entry))
    return once + steps * (everywhere - once)


def waits(get_result: Callable[[], Any]) -> Callable[[], None]:
    """Returns a function that waits for the newest weights."""
    return lambda: jax.block_until_ready(get_result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("devices", 8), ("width", 256), ("layers", 6), ("rows", 8192), ("steps", 8), ("rounds", 15)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    rx.config.set_virtual_devices(args.devices)
    first = weights_of(args.width, args.layers)
    rows = np.random.default_rng(1).normal(size=(args.rows, args.width)).astype(np.float32)

    one, whole = WithReplicax(1, first, 1), WithReplicax(args.devices, first, 1)
    accumulated, uneven = (WithReplicax(args.devices, first, steps) for steps in (args.steps, args.steps - 1))
    by_hand = ByHand(args.devices, first, args.steps, args.rows)
    trained = (one, whole, accumulated, uneven, by_hand)
    batches = [each.placed(rows) for each in trained]
    for _ in range(5):
        for each, batch in zip(trained, batches, strict=True):
            each.step(batch)
    expected = [each.value for each in one.weights]
    assert difference(by_hand.state[0], expected) < 1e-6, "The hand-written step does something else."
    largest = max(difference([w.value for w in each.weights], expected) for each in (whole, accumulated, uneven))

    compiled = [each.step.lower(batch).compile() for each, batch in ((whole, batches[1]), (accumulated, batches[2]))]
    memory = [each.memory_analysis().temp_size_in_bytes for each in compiled]
    count = all_reduces(compiled[1].as_text(), args.steps)
    assert re.search(r"\bwhile\(", compiled[1].as_text()), "There is no loop over micro-batches."

    steps = {
        "accumulated": lambda: accumulated.step(batches[2]),
        "by hand": lambda: by_hand.step(batches[4]),
        "whole": lambda: whole.step(batches[1]),
    }
    finish = {
        "accumulated": waits(lambda: accumulated.weights[0].value),
        "by hand": waits(lambda: by_hand.state),
        "whole": waits(lambda: whole.weights[0].value),
    }
    seconds = interleaved_medians(steps, finish, args.rounds, 4)
    for name, each in seconds.items():
        print(f"{name:12} {each * 1e3:8.2f} ms")
    print(f"memory for intermediate results: {memory[1] / 2**20:.1f} MiB, of the whole batch {memory[0] / 2**20:.1f}")
    print(f"RESULT accumulate_max_difference {largest:.3g}")
    print(f"RESULT accumulate_all_reduces {count}")
    print(f"RESULT accumulate_memory_ratio {memory[1] / memory[0]:.3f}")
    print(f"RESULT accumulate_vs_handwritten {seconds['accumulated'] / seconds['by hand']:.3f}")


if __name__ == "__main__":
    main()
