"""What central storage costs: a step with the variables on the host, beside hand-written mirrored JAX.

    python benchmarks/central.py [--devices 2] [--rounds 15] [--steps 10]

The step is a 784-700-500-10 network with Adam and a global batch of 128. All variants run in turn in one process;
figures are medians. TensorFlow's CentralStorageStrategy took 15.4 ms for it, on two devices of such a machine.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
from overhead import ROWS, KerasLoop, distributed_batch
from timing import interleaved_medians, print_table

import replicax as rx


def main() -> None:
    """Prints the table and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="steps of a variant in each round")
    options = parser.parse_args()
    rx.config.set_virtual_devices(options.devices)
    mirrored, central = rx.MirroredStrategy(), rx.CentralStorageStrategy()
    step = hand.make_shard_map_step(mirrored.mesh, ROWS)
    variants = {
        "hand-written, mirrored": hand.HandWritten(step, mirrored.mesh, hand.SIZES, hand.make_batch(ROWS)),
        "MirroredStrategy": KerasLoop(mirrored, distributed_batch(mirrored)),
        "CentralStorageStrategy": KerasLoop(central, distributed_batch(central)),
    }
    medians = interleaved_medians(
        variants, {name: v.wait for name, v in variants.items()}, options.rounds, options.steps
    )
    by_hand, ours = medians["hand-written, mirrored"], medians["CentralStorageStrategy"]
    rows = [(name, f"{seconds * 1e3:.2f}", f"{seconds / by_hand:.3f}") for name, seconds in medians.items()]
    devices = f"{central.num_replicas_in_sync} devices"
    print_table(f"one step on {devices}, variables on one", ("variant", "ms", "ratio"), rows)
    print(f"RESULT central_step_ms {ours * 1e3:.2f}")
    print(f"RESULT central_vs_handwritten_mirrored {ours / by_hand:.3f}")


if __name__ == "__main__":
    main()
