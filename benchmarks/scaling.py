"""How costs grow: with devices, variables, parameters, workers, servers, embedding rows and steps; JAX by hand beside.

    python benchmarks/scaling.py [--quick] [--only devices,variables] [--output runs/scaling]

Each sweep makes one thing larger and keeps the rest. A contestant has processes of its own, as in `against_peers.py`;
ours and JAX's take turns. The fitted exponents of seconds by size are printed (1 is linear) and plotted. Virtual
devices and workers share this machine's cores: more of them do the same work in more pieces, so the time of a step
should grow by what the pieces cost, and no more than linearly. `benchmarks/fake_peers.py` goes on to 10,000 processes.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from peers.contest import ContestError, Entry, Plan, hold
from peers.rows.workers2 import ONE_DEVICE
from timing import exponent, print_table

OURS, HAND = "replicax", "JAX by hand"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What is made larger.

    Attributes:
        title: For the table.
        sizes: The sizes.
        quick: The sizes of `--quick`.
        entries: Returns the contestants at a size.
        plan: How much is measured at each size.
    """

    title: str
    sizes: tuple[int, ...]
    quick: tuple[int, ...]
    entries: Callable[[int], list[Entry]]
    plan: Plan


def pair(program: str, **options: Any) -> list[Entry]:
    """Returns our contestant and the one by hand, made by the same function of `peers.growing`."""
    devices = int(options.get("devices", 1))
    virtual = {"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(2 * devices)}
    return [
        Entry(OURS, f"peers.growing:{program}", {**options, "ours": True}),
        Entry(HAND, f"peers.growing:{program}", {**options, "ours": False}, environment=virtual),
    ]


def on_workers(workers: int) -> list[Entry]:
    """Returns a training step on so many processes."""
    if workers == 1:
        return [
            Entry(OURS, "peers.replicax_steps:loop", {"kind": "keras"}),
            Entry(HAND, "peers.jax_steps:replicas", {"kind": "jit"}),
        ]
    ours = {"kind": "keras", "strategy": "workers"}
    return [
        Entry(OURS, "peers.replicax_steps:loop", ours, workers=workers, environment=ONE_DEVICE),
        Entry(HAND, "peers.jax_steps:processes", {"kind": "packed"}, workers=workers, environment=ONE_DEVICE),
    ]


def on_servers(servers: int) -> list[Entry]:
    """Returns asynchronous training with two workers and so many servers; there is nothing like it by hand."""
    return [Entry(OURS, "peers.replicax_steps:servers", {"workers": 2, "servers": servers})]


FEW = Plan(rounds=3, steps=3, launches=1, check_steps=2)
ONCE = Plan(rounds=1, steps=1, launches=1, check_steps=1, deadline=900.0)
SWEEPS = {
    "devices": Sweep("devices (virtual), the network of 784-700-500-10", (1, 2, 4, 8, 16, 32, 64, 128), (1, 4, 16),
                     lambda n: pair("network", devices=n), FEW),
    "variables": Sweep("variables of 64 numbers, one device", (10, 30, 100, 300, 1000, 3000), (10, 30, 100, 300),
                       lambda n: pair("many_variables", count=n), dataclasses.replace(FEW, deadline=1200.0)),
    "parameters": Sweep("parameters in four layers, one device", (10**5, 10**6, 10**7, 10**8), (10**5, 10**6, 10**7),
                        lambda n: pair("parameters", count=n), FEW),
    "workers": Sweep("workers (processes), global batch 128", (1, 2, 4), (1, 2), on_workers,
                     Plan(rounds=5, steps=10, launches=1)),
    "servers": Sweep("parameter servers, two workers", (1, 2, 3), (1, 2), on_servers,
                     Plan(rounds=3, steps=30, launches=1)),
    "rows": Sweep("rows of an embedding of 16, 512 looked up, one device", (10**4, 10**5, 10**6, 10**7),
                  (10**4, 10**5, 10**6), lambda n: pair("embedding", rows=n), FEW),
    "steps": Sweep("steps of a tiny network, all together", (10**3, 10**4, 10**5, 10**6), (10**3, 10**4),
                   lambda n: pair("steps", count=n), ONCE),
}  # fmt: skip


def measure(sweep: Sweep, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Returns for each contestant the milliseconds of a step at each size."""
    found: dict[str, list[float]] = {}
    for size in sizes:
        outcome = hold(sweep.entries(size), sweep.plan)
        for name in outcome.medians:
            found.setdefault(name, []).append(1e3 * outcome.seconds(name))
    return found


def show(name: str, sweep: Sweep, sizes: Sequence[int], found: dict[str, list[float]]) -> dict[str, float]:
    """Prints the table and the exponents; returns them."""
    rows = [
        (f"{size:,}", *(f"{figures[i]:.3g}" for figures in found.values()),
         f"{found[OURS][i] / found[HAND][i]:.2f}" if HAND in found else "")
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    exponents = {who: exponent(sizes, figures) for who, figures in found.items()}
    rows.append(("exponent", *(f"{value:.2f}" for value in exponents.values()), ""))
    print_table(f"ms a step by {sweep.title}", (name, *found, "ratio"), rows)
    for who, value in exponents.items():
        print(f"RESULT scaling_{name}_exponent_{'ours' if who == OURS else 'by_hand'} {value:.2f}", flush=True)
    return exponents


def plot(name: str, sweep: Sweep, sizes: Sequence[int], found: dict[str, list[float]], folder: Path) -> None:
    """Draws milliseconds by size, both logarithmic."""
    figure, axes = plt.subplots(figsize=(5, 3.6), layout="constrained")
    for (who, figures), style in zip(found.items(), ("s-", "o--"), strict=False):
        axes.loglog(sizes, figures, style, label=f"{who}, exponent {exponent(sizes, figures):.2f}")
    axes.set(title=sweep.title, xlabel=name, ylabel="ms a step")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Measures, prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SWEEPS))
    parser.add_argument("--quick", action="store_true", help="fewer sizes")
    parser.add_argument("--output", type=Path, default=Path("runs/scaling"))
    options = parser.parse_args()
    failed, all_exponents = 0, []
    for name in options.only.split(","):
        sweep = SWEEPS[name]
        sizes = sweep.quick if options.quick else sweep.sizes
        try:
            found = measure(sweep, sizes)
        except ContestError as error:
            failed += 1
            print(f"{name} failed: {error}")
            continue
        all_exponents.append(show(name, sweep, sizes, found))
        plot(name, sweep, sizes, found, options.output)
    if all_exponents:
        print(f"RESULT growth_worst_exponent {max(each[OURS] for each in all_exponents):.2f}")
        # What XLA and too few cores do is not ours: workers beyond the cores are more than linear by hand, too.
        beyond = max((each[OURS] - each[HAND] for each in all_exponents if HAND in each), default=math.nan)
        print(f"RESULT growth_worst_beyond_by_hand {beyond:.2f}")
    print(f"plots are in {options.output}")
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
