"""Memory on each device under `MirroredStrategy` and `FullyShardedStrategy`: variables and Adam's state.

    python benchmarks/memory.py [--devices 8] [--width 4096]

The network has 50 million parameters in four layers. Counted are the bytes of the variables' parts on each device, the
fullest device's in the table, before the first training step and after it. A figure is what stays between steps; while
a step runs there are also gradients, activations and, fully sharded, the layer that is gathered just then. The ratio
compares with an Nth of a `MirroredStrategy` that mirrors everything, also the optimizer's state.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import keras
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


def main() -> None:
    """Prints the table and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--width", type=int, default=4096, help="of the layers")
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
    print(f"RESULT memory_mirrored_mib {mirrored / MIB:.1f}")
    print(f"RESULT memory_mirrored_sharded_update_mib {sharded_update / MIB:.1f}")
    print(f"RESULT memory_fully_sharded_mib {sharded / MIB:.1f}")
    print(f"RESULT memory_fully_sharded_ratio {sharded * strategy.num_replicas_in_sync / mirrored:.4f}")


if __name__ == "__main__":
    main()
