"""The part of `tables.py` on parameter servers: what a step moves, and what a server holds, of a large table.

    python benchmarks/tables_servers.py [--rows 10000000] [--columns 64] [--batch 4096] [--steps 20]

One worker, two servers, Adagrad. A step looks up `batch` ids, some of them twice. Bytes are those that the house counts
(`coordinator.stats()`): rows that a worker pulls, the ids that it asks for, gradients of rows with their ids that it
pushes, and the few small variables beside. They are divided by what the touched rows and their gradients have. Memory
is that of a server's process, as the kernel counts it (peak, less that before the table was made), by the table with
its optimizer's slots. The rows are compared with those of plain NumPy.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
import keras_rs
import numpy as np

import replicax as rx

_LEARNING_RATE, _SLOT = 0.1, 0.1


def peak_bytes(pid: int) -> int:
    """Returns the most memory that a process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def batches(rows: int, batch: int, steps: int) -> list[np.ndarray]:
    """Ids as recommenders have them, few of them often: log-uniform, shape `(batch, 1)`."""
    rng = np.random.default_rng(0)
    found = [np.minimum(np.floor(rows ** rng.random((batch, 1))), rows) - 1 for _ in range(steps)]
    return [each.astype(np.int32) for each in found]


def measure(rows: int = 10_000_000, columns: int = 64, batch: int = 4096, steps: int = 20) -> dict[str, float]:
    """Trains a table on servers; returns the ratios by their names."""
    strategy = rx.ParameterServerStrategy(workers=1, servers=2, max_staleness=0)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    servers = [pid for name, pid in coordinator.processes().items() if name.startswith("ps:")]
    small = rx.function(lambda: None)
    coordinator.schedule(small).fetch()
    before = [peak_bytes(pid) for pid in servers]
    initializer = keras.initializers.RandomUniform(seed=1)
    config = keras_rs.layers.TableConfig(
        "items", rows, columns, initializer, keras.optimizers.Adagrad(_LEARNING_RATE), combiner="sum"
    )
    feature = keras_rs.layers.FeatureConfig("item", config, (batch, 1), (batch, columns))
    with strategy.scope():
        layer = rx.keras.DistributedEmbedding({"item": feature})
        layer.build({"item": (batch, 1)})

    @rx.function
    def step(ids: np.ndarray, targets: np.ndarray) -> object:
        def loss_fn() -> object:
            return keras.ops.sum(keras.ops.square(layer({"item": ids})["item"] - targets))

        loss, _ = rx.value_and_grad(loss_fn, layer.trainable_variables)()
        return loss

    target = np.random.default_rng(1).standard_normal((batch, columns)).astype(np.float32)
    given = batches(rows, batch, steps + 1)
    coordinator.schedule(step, args=(given[0], target)).fetch()
    first = coordinator.stats()
    for ids in given[1:]:
        coordinator.schedule(step, args=(ids, target))
    coordinator.join(600)
    last = coordinator.stats()
    moved = (last.bytes_pulled + last.bytes_pushed - first.bytes_pulled - first.bytes_pushed) / steps
    touched = np.mean([len(np.unique(ids)) for ids in given[1:]]) * columns * 4 * 2  # a row, and its gradient
    whole = rows * columns * 4 * 2  # the table, and its slot
    memory = max(peak_bytes(pid) - base for pid, base in zip(servers, before, strict=True))
    look_up = rx.function(lambda ids: layer({"item": ids})["item"])
    looked = np.unique(np.concatenate(given))[-batch:].reshape(-1, 1)
    got = coordinator.schedule(look_up, args=(np.resize(looked, (batch, 1)),)).fetch()
    wanted = _by_numpy(initializer, given, target, rows, columns)
    difference = max(np.abs(row - wanted[int(i)]).max() for i, row in zip(np.resize(looked, batch), got, strict=True))
    strategy.close()
    return {
        "table_bytes_ratio": float(moved / touched),
        "table_memory_ratio": memory / whole,
        "table_servers_max_difference": float(difference),
    }


def _by_numpy(
    initializer: object, given: list[np.ndarray], target: np.ndarray, rows: int, columns: int
) -> dict[int, np.ndarray]:
    """Returns the rows that NumPy's Adagrad makes."""
    import jax

    from replicax.tables.initial_rows import initial_rows

    ids = np.unique(np.concatenate(given))
    rows_of = jax.jit(initial_rows(initializer, (rows, columns), "float32"))
    values = np.array(rows_of(np.zeros(len(ids), np.uint32), ids.astype(np.uint32)))
    slots = np.full_like(values, _SLOT)
    for batch in given:
        places = np.searchsorted(ids, batch[:, 0])
        gradient = np.zeros_like(values)
        np.add.at(gradient, places, 2 * (values[places] - target))
        slots += gradient**2
        values -= _LEARNING_RATE * gradient / np.sqrt(slots + np.float32(1e-7))
    return dict(zip(ids.tolist(), values, strict=True))


def main() -> None:
    """Prints the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--columns", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    for name, value in measure(options.rows, options.columns, options.batch, options.steps).items():
        print(f"RESULT {name} {value:.3g}")


if __name__ == "__main__":
    main()
