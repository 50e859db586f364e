"""What asynchronous training costs: a step with 1 and 2 workers, 1 and 2 servers, and what an embedding moves.

    python benchmarks/parameter_server.py [--rounds 7] [--steps 60]

The step is a 784-700-500-10 network with Adam and a batch of 128 for each worker. All variants run in turn on one
machine, beside a plain JAX step on one device in this process; figures are medians of wall-clock time by steps that all
workers together have made. TensorFlow's ParameterServerStrategy took 21.5 ms with 2 workers and 1 server on such a
machine. The embedding has 1,000,000 rows of 64 numbers, cut over 2 servers.
"""

from __future__ import annotations

import argparse
import itertools
import os
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
import jax
import keras
import numpy as np
from problem import EPSILON, LEARNING_RATE, flat_weights
from timing import interleaved_medians, print_table

import replicax as rx

ROWS = 128
CONFIGURATIONS = ((1, 1), (1, 2), (2, 1), (2, 2))
TABLE_ROWS, DIMENSIONS = 1_000_000, 64


def batches() -> Any:
    """What each worker trains on: one batch, again and again."""
    return itertools.repeat(hand.make_batch(ROWS))


class Asynchronous:
    """The custom loop under a parameter server strategy.

    Args:
        workers: How many workers.
        servers: How many servers.
    """

    def __init__(self, workers: int, servers: int):
        self.strategy = rx.ParameterServerStrategy(workers=workers, servers=servers)
        self.coordinator = rx.coordinator.ClusterCoordinator(self.strategy)
        with self.strategy.scope():
            layers: list[Any] = [keras.layers.Dense(size, activation="relu") for size in hand.SIZES[1:-1]]
            model = keras.Sequential([keras.Input(hand.SIZES[:1]), *layers, keras.layers.Dense(hand.SIZES[-1])])
            optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)
            model.set_weights(flat_weights())
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.iterator = iter(self.coordinator.create_per_worker_dataset(batches))

        def train_step(iterator: Any) -> Any:
            x, y = next(iterator)
            variables = model.trainable_variables
            loss, gradients = rx.value_and_grad(lambda: loss_of(y, model(x, training=True)), variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        self.step = rx.function(train_step)
        self.loss: Any = None

    def __call__(self) -> None:
        """Schedules one step."""
        self.loss = self.coordinator.schedule(self.step, args=(self.iterator,))

    def last(self) -> float:
        """Returns the loss of the step that was scheduled last, once it is done."""
        return float(self.loss.fetch())

    def wait(self) -> None:
        """Waits for all steps."""
        self.coordinator.join(300)


def step_seconds(rounds: int, steps: int) -> tuple[dict[str, float], dict[str, rx.coordinator.Stats]]:
    """Measures a step of each variant, in seconds, and what the workers' time went into."""
    device = rx.OneDeviceStrategy(jax.local_devices()[0])
    alone = hand.HandWritten(hand.make_gspmd_step(device.mesh, ROWS), device.mesh, hand.SIZES, hand.make_batch(ROWS))
    variants: dict[str, Any] = {"one device, plain JAX": alone}
    for workers, servers in CONFIGURATIONS:
        variants[f"{workers} workers, {servers} servers"] = Asynchronous(workers, servers)
    medians = interleaved_medians(variants, {name: v.wait for name, v in variants.items()}, rounds, steps)
    stats = {name: v.coordinator.stats() for name, v in variants.items() if isinstance(v, Asynchronous)}
    for variant in variants.values():
        if isinstance(variant, Asynchronous):
            variant.strategy.close()
    return medians, stats


def embedding_bytes(batch_sizes: tuple[int, ...]) -> list[tuple[int, float, float]]:
    """Returns, for each batch size, the rows that a step touches in the mean, and the bytes that it moves."""
    partitioner = rx.FixedShardsPartitioner(2)
    strategy = rx.ParameterServerStrategy(workers=1, servers=2, variable_partitioner=partitioner)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    rng = np.random.default_rng(0)
    with strategy.scope():
        table = rx.Variable(rng.random((TABLE_ROWS, DIMENSIONS), np.float32))

    @rx.function
    def step(ids: Any) -> None:
        (gradient,) = rx.grad(lambda: jax.numpy.sum(jax.numpy.take(table.value, ids, axis=0) ** 2), [table])()
        table.assign_sub(0.01 * gradient)

    found = []
    for size in batch_sizes:
        before, steps = coordinator.stats(), [rng.integers(0, TABLE_ROWS, size, np.int32) for _ in range(20)]
        for ids in steps:
            coordinator.schedule(step, args=(ids,))
        coordinator.join(300)
        after = coordinator.stats()
        moved = after.bytes_pulled + after.bytes_pushed - before.bytes_pulled - before.bytes_pushed
        found.append((size, float(np.mean([len(np.unique(ids)) for ids in steps])), moved / len(steps)))
    strategy.close()
    return found


def main() -> None:
    """Prints the tables and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=60, help="steps of a variant in each round")
    options = parser.parse_args()
    with rx.testing.local_cluster(workers=2, servers=2):
        medians, stats = step_seconds(options.rounds, options.steps)
        moved = embedding_bytes((128, 512, 2048))
    plain = medians["one device, plain JAX"]
    rows = []
    for name, seconds in medians.items():
        parts = ["", "", ""]
        if name in stats:
            total = {what: sum(w.seconds[what] for w in stats[name].workers) for what in ("pull", "compute", "push")}
            parts = [f"{spent / stats[name].steps * 1e3:.2f}" for spent in total.values()]
        rows.append((name, f"{seconds * 1e3:.2f}", f"{seconds / plain:.2f}", *parts))
    print_table("one step", ("variant", "ms", "ratio", "pull", "compute", "push"), rows)
    print_table(
        f"an embedding of {TABLE_ROWS:,} x {DIMENSIONS} ({TABLE_ROWS * DIMENSIONS * 4 / 2**20:.0f} MiB)",
        ("batch", "rows touched", "bytes moved", "bytes by row"),
        [(f"{size}", f"{touched:.0f}", f"{total:.0f}", f"{total / touched:.0f}") for size, touched, total in moved],
    )
    print(f"RESULT ps_1_worker_ms {medians['1 workers, 1 servers'] * 1e3:.2f}")
    print(f"RESULT ps_2_workers_ms {medians['2 workers, 1 servers'] * 1e3:.2f}")
    print(f"RESULT ps_2_workers_2_servers_ms {medians['2 workers, 2 servers'] * 1e3:.2f}")
    print(f"RESULT ps_2_workers_ms_ratio_to_handwritten_step {medians['2 workers, 1 servers'] / plain:.2f}")
    print(f"RESULT ps_embedding_bytes_by_row {moved[-1][2] / moved[-1][1]:.0f}")


if __name__ == "__main__":
    main()
