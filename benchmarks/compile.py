"""The first call of a training step of a deep model: tracing, lowering, XLA, and the first step itself.

    python benchmarks/compile.py [--devices 8] [--rounds 3] [--cases 100_layers 500_layers 1000_variables]

The peer is the same step by hand in plain JAX and optax (`benchmarks/deep.py`): same weights, batch, optimizer and
devices, state donated, one `jax.jit`. It is written in both ways, in one replica's view (`shard_map`) and in the global
view (XLA partitions), and the faster of the two counts. Keras's own model and optimizer under plain `jax.jit` stand
beside them, to tell what the layers cost. Every first call is made in a process of its own, in turn, without JAX's
persistent compilation cache, after one small program has started the devices; figures are medians. Before a ratio is
printed, the losses of three steps are compared. Memory is the most that a process held.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "jax")

import deep
import jax
import jax.numpy as jnp
import numpy as np
from timing import print_table

import replicax as rx

CASES = {
    "100_layers": deep.Case(layers=100, adam=True),
    "500_layers": deep.Case(layers=500, adam=True),
    "1000_variables": deep.Case(layers=249, adam=False),
}
OURS = "replicax"
PEERS = ("hand-written shard_map", "hand-written GSPMD")
ONLY_KERAS = "Keras under jax.jit"


@dataclasses.dataclass(frozen=True)
class FirstCall:
    """What one process measured.

    Attributes:
        seconds: The first call, to the end of its step.
        cpu_seconds: What all threads computed meanwhile.
        bytes: The most memory that the process has held.
        losses: Those of the first three steps.
    """

    seconds: float
    cpu_seconds: float
    bytes: int
    losses: list[float]


def measure(case: str, variant: str, devices: int) -> FirstCall:
    """Makes the first call in this process."""
    rx.config.set_virtual_devices(devices)
    jax.config.update("jax_enable_compilation_cache", False)
    step = deep.VARIANTS[variant](CASES[case])
    jax.block_until_ready(jax.jit(lambda x: x + 1)(jnp.zeros(())))
    start, cpu = time.perf_counter(), time.process_time()
    losses = [float(step())]
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    losses += [float(step()) for _ in range(2)]
    return FirstCall(seconds, cpu_seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, losses)


def measured_elsewhere(case: str, variant: str, devices: int) -> FirstCall:
    """Makes the first call in a new process."""
    command = [sys.executable, __file__, "--devices", str(devices), "--measure", case, variant]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return FirstCall(**json.loads(done.stdout.splitlines()[-1]))


def compare(case: str, devices: int, rounds: int) -> None:
    """Measures one case in turn, and prints a table and its RESULT lines."""
    variants = [OURS, *PEERS, *([ONLY_KERAS] if CASES[case].adam else [])]
    calls: dict[str, list[FirstCall]] = {variant: [] for variant in variants}
    for _ in range(rounds):
        for variant in variants:
            calls[variant].append(measured_elsewhere(case, variant, devices))
    for variant in variants:
        np.testing.assert_allclose(calls[variant][0].losses, calls[OURS][0].losses, rtol=1e-4, err_msg=variant)
    seconds = {name: statistics.median(call.seconds for call in calls[name]) for name in variants}
    cpu = {name: statistics.median(call.cpu_seconds for call in calls[name]) for name in variants}
    held = {name: statistics.median(call.bytes for call in calls[name]) for name in variants}
    best = min(PEERS, key=seconds.__getitem__)
    rows = [
        (name, f"{seconds[name]:.2f}", f"{cpu[name]:.2f}", f"{seconds[name] / seconds[best]:.2f}",
         f"{held[name] / 2**20:.0f}", f"{held[name] / held[best]:.2f}")
        for name in variants
    ]  # fmt: skip
    print_table(f"first call, {case}", ("variant", "s", "CPU s", "ratio", "MiB", "ratio"), rows)
    print(f"RESULT compile_ratio_{case} {seconds[OURS] / seconds[best]:.3f}")
    print(f"RESULT compile_memory_ratio_{case} {held[OURS] / held[best]:.3f}", flush=True)


def main() -> None:
    """Prints the tables and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(dataclasses.asdict(measure(*options.measure, options.devices))))
        return
    for case in options.cases:
        compare(case, options.devices, options.rounds)


if __name__ == "__main__":
    main()
