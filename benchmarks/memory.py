"""Memory on each device under `MirroredStrategy` and `FullyShardedStrategy`, and in each phase beside plain programs.

    python benchmarks/memory.py [--devices 8] [--width 4096] [--layers 24] [--rounds 3]

The network has 50 million parameters in four layers. Counted are the bytes of the variables' parts on each device, the
fullest device's in the table, before the first training step and after it. A figure is what stays between steps; while
a step runs there are also gradients, activations and, fully sharded, the layer that is gathered just then. The ratio
compares with an Nth of a `MirroredStrategy` that mirrors everything, also the optimizer's state.

For a custom loop there is also the peak within a step: what the compiled step of `FullyShardedStrategy.run` takes on a
device (arguments, results and temporaries, as XLA has planned them), compared with an Nth of the variables. It is
measured with a deep network, since two layers or so are whole at a time.

At last come the peaks of processes, ours and those of the plain program with the same work (`memory_phases.py`).
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
import jax
import jax.numpy as jnp
import keras
import memory_phases
import numpy as np
from timing import print_table

import replicax as rx

ROWS = 32
MIB = 2**20


def bytes_by_device(variables: Sequence[Any]) -> dict[Any, int]:
    """Returns for each device the bytes of the parts of `variables` that are on it."""
    held: collections.Counter[Any] = collections.Counter()
    for variable in variables:
        for shard in variable.value.addressable_shards:
            held[shard.device] += shard.data.nbytes
    return dict(held)


def measured(strategy: rx.Strategy, width: int) -> tuple[int, int, int]:
    """Returns the number of parameters and the fullest device's bytes before and after a training step."""
    sizes = [width // 2, width, width, width, width // 2]
    with strategy.scope():
        model = keras.Sequential([keras.Input((sizes[0],)), *(keras.layers.Dense(size) for size in sizes[1:])])
        optimizer = keras.optimizers.Adam(1e-3)
        model.compile(optimizer, "mse")
        optimizer.build(model.trainable_variables)
    variables = [*model.variables, *optimizer.variables]
    before = max(bytes_by_device(variables).values())
    x, y = np.ones((ROWS, sizes[0]), np.float32), np.ones((ROWS, sizes[-1]), np.float32)
    model.fit(x, y, batch_size=ROWS, verbose=0)
    held = bytes_by_device(variables)
    assert len(held) == strategy.num_replicas_in_sync, "Some device holds nothing."
    return model.count_params(), before, max(held.values())


def run_peak(strategy: rx.Strategy, width: int, layers: int) -> tuple[int, int]:
    """Returns the bytes that a step of a custom loop takes on a device, and those of all variables together."""
    with strategy.scope():
        hidden = [keras.layers.Dense(width, "tanh") for _ in range(layers)]
        model = keras.Sequential([keras.Input((width,)), *hidden])
        optimizer = keras.optimizers.Adam(1e-3)
        optimizer.build(model.trainable_variables)

    def replica_step(x: jax.Array) -> jax.Array:
        loss, gradients = rx.value_and_grad(lambda: jnp.sum(model(x) ** 2) / ROWS, model.trainable_variables)()
        optimizer.apply(gradients)
        return loss

    @rx.function
    def step(x: Any) -> Any:
        return strategy.run(replica_step, args=(x,))

    [batch] = strategy.distribute_dataset([np.ones((ROWS, width), np.float32)])
    step(batch)
    variables = sum(variable.value.nbytes for variable in (*model.variables, *optimizer.variables))
    return hand.peak_bytes(step.lower(batch).compile()), variables


def main() -> None:
    """Prints the table and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--width", type=int, default=4096, help="of the layers")
    parser.add_argument("--layers", type=int, default=24, help="layers of the network of the custom loop")
    parser.add_argument("--run-width", type=int, default=512, help="width of these layers")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each program whose phases are measured")
    options = parser.parse_args()
    rx.config.set_virtual_devices(options.devices)

    strategies = {
        "Mirrored, shard_update=False": rx.MirroredStrategy(shard_update=False),
        "Mirrored": rx.MirroredStrategy(),
        "FullySharded": rx.FullyShardedStrategy(),
    }
    rows, after = [], []
    for name, strategy in strategies.items():
        parameters, before, held = measured(strategy, options.width)
        gc.collect()  # the model and its optimizer refer to each other
        rows.append((name, f"{before / MIB:.1f}", f"{held / MIB:.1f}"))
        after.append(held)
    title = f"{parameters / 1e6:.1f} million parameters and Adam on {strategy.num_replicas_in_sync} devices, MiB each"
    print_table(title, ("strategy", "before the first step", "after it"), rows)
    mirrored, sharded_update, sharded = after
    rows, peaks = [], {}
    for name, strategy in strategies.items():
        peaks[name], variables = run_peak(strategy, options.run_width, options.layers)
        gc.collect()
        nth = variables / strategy.num_replicas_in_sync
        rows.append((name, f"{peaks[name] / MIB:.1f}", f"{nth / MIB:.1f}", f"{peaks[name] / nth:.2f}"))
    title = f"peak within a step of a custom loop, {options.layers} layers of {options.run_width}, MiB on a device"
    print_table(title, ("strategy", "peak", "an Nth of the variables", "ratio"), rows)
    print(f"RESULT memory_mirrored_mib {mirrored / MIB:.1f}")
    print(f"RESULT memory_mirrored_sharded_update_mib {sharded_update / MIB:.1f}")
    print(f"RESULT memory_fully_sharded_mib {sharded / MIB:.1f}")
    print(f"RESULT run_peak_ratio_to_one_nth {peaks['FullySharded'] / nth:.3f}")
    print(f"RESULT memory_fully_sharded_ratio {sharded * strategy.num_replicas_in_sync / mirrored:.4f}", flush=True)
    worst = 0.0
    for kind in memory_phases.KINDS:
        for devices in memory_phases.WIDTHS:
            rows, ratios = memory_phases.compare(kind, devices, options.rounds)
            header = ("phase", memory_phases.OURS, memory_phases.PLAIN, "ratio")
            print_table(f"peak of a process, {kind}, {devices} devices, MiB", header, rows)
            worst = max(worst, *ratios.values())
    print(f"RESULT memory_vs_plain_max {worst:.3f}")


if __name__ == "__main__":
    main()
