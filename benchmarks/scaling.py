"""What a training step costs on 1, 2, 4 and 8 devices, for a small and a larger network.

    python benchmarks/scaling.py [--output runs/scaling]

Strong scaling: the global batch stays 128. On virtual devices, which share this machine's cores, more devices add
communication and copies of the optimizer's work but no speed: the figure shows what that costs, for replicax and for
hand-written `shard_map`. On GPUs it shows the gain.
"""

from __future__ import annotations

import argparse
import os
import pathlib

os.environ.setdefault("KERAS_BACKEND", "jax")

import handwritten as hand
import jax
import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from overhead import KerasLoop
from timing import interleaved_medians, print_table

import replicax as rx

ROWS = 128
NETWORKS = {"784-128-10": (784, 128, 10), "784-700-500-10": (784, 700, 500, 10)}
HAND, OURS = "hand-written shard_map", "replicax, Keras loop"

Times = dict[str, dict[int, dict[str, float]]]


def measure(counts: list[int], rounds: int, steps: int) -> Times:
    """Returns seconds per step by network, number of devices and variant."""
    times: Times = {}
    for network, sizes in NETWORKS.items():
        times[network] = {}
        for count in counts:
            strategy = rx.MirroredStrategy(jax.local_devices()[:count])
            data = hand.make_batch(ROWS)
            (batch,) = strategy.distribute_dataset([data], rx.InputOptions(prefetch=0))
            step = hand.make_shard_map_step(strategy.mesh, ROWS)
            variants = {
                HAND: hand.HandWritten(step, strategy.mesh, sizes, data),
                OURS: KerasLoop(strategy, batch, sizes),
            }
            finish = {name: variant.wait for name, variant in variants.items()}
            times[network][count] = interleaved_medians(variants, finish, rounds, steps)
    return times


def plot(times: Times, path: pathlib.Path) -> None:
    """Draws milliseconds per step against devices, one panel a network."""
    figure, panels = plt.subplots(1, len(times), figsize=(5 * len(times), 3.6), layout="constrained")
    for panel, (network, by_count) in zip(panels, times.items(), strict=True):
        counts = list(by_count)
        for name, style in ((HAND, "o--"), (OURS, "s-")):
            panel.plot(counts, [by_count[count][name] * 1e3 for count in counts], style, label=name)
        panel.set(title=network, xlabel="devices", ylabel="ms per step", xscale="log", ylim=(0, None))
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Prints the table and the RESULT lines, and writes the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("runs/scaling"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    rx.config.set_virtual_devices(8)
    counts = [count for count in (1, 2, 4, 8) if count <= len(jax.local_devices())]

    times = measure(counts, options.rounds, options.steps)
    rows = [
        (network, str(count), *(f"{by_name[name] * 1e3:.2f}" for name in (HAND, OURS)),
         f"{by_name[OURS] / by_name[HAND]:.3f}")
        for network, by_count in times.items()
        for count, by_name in by_count.items()
    ]  # fmt: skip
    print_table("ms per step", ("network", "devices", HAND, OURS, "ratio"), rows)
    options.output.mkdir(parents=True, exist_ok=True)
    path = options.output / "scaling.png"
    plot(times, path)
    print(f"wrote {path}")
    for network, by_count in times.items():
        for count, by_name in by_count.items():
            print(f"RESULT scaling_{network}_devices_{count}_ms {by_name[OURS] * 1e3:.2f}")


if __name__ == "__main__":
    main()
