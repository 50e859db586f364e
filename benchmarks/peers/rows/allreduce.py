"""An all-reduce over two processes: ours, JAX's `psum`, torch's over Gloo."""

from __future__ import annotations

from peers.contest import Entry
from peers.row import Row, Setup, contest_row
from peers.rows.workers2 import ONE_DEVICE

KIB, MIB = 2**10, 2**20
JAX = ("JAX psum", "JAX psum, donated")
OURS, TORCH = "replicax, all_reduce", "torch all_reduce"


def _measure(setup: Setup, size: int, steps: int, launches: int = 2) -> tuple[Row, dict[str, list[float]]]:
    elements = size // 4
    entries = [
        Entry(JAX[0], "peers.jax_steps:all_reduce", {"elements": elements}, workers=2, environment=ONE_DEVICE),
        Entry(JAX[1], "peers.jax_steps:all_reduce", {"elements": elements, "donate": True}, workers=2,
              environment=ONE_DEVICE),
        Entry(OURS, "peers.replicax_steps:all_reduce", {"elements": elements}, workers=2, environment=ONE_DEVICE),
    ]  # fmt: skip
    if setup.torch:
        entries.append(
            Entry(TORCH, "peers.torch_steps:all_reduce", {"elements": elements}, python=setup.torch, workers=2,
                  environment={"OMP_NUM_THREADS": "1"})
        )  # fmt: skip
    shown = f"{size // KIB} KiB" if size < MIB else f"{size // MIB} MiB"
    plan = setup.plan(rounds=11, steps=steps, launches=launches, tolerance=0.0, check_steps=1)
    row, outcome, best = contest_row(f"all-reduce of {shown}, two processes", entries, plan)
    ratios = {"jax": outcome.ratios(OURS, outcome.best(JAX)), "best": outcome.ratios(OURS, best)}
    if setup.torch:
        ratios["torch"] = outcome.ratios(OURS, TORCH)
    else:
        row.notes.append("torch is missing")
    return row, ratios


def measure_4kib(setup: Setup) -> Row:
    """Measures 4 KiB, where the fixed cost counts."""
    row, ratios = _measure(setup, 4 * KIB, 100, launches=3)
    row.result("allreduce_4kib_vs_jax", ratios["jax"])
    return row


def measure_4mib(setup: Setup) -> Row:
    """Measures 4 MiB."""
    row, ratios = _measure(setup, 4 * MIB, 30)
    if "torch" in ratios:
        row.result("allreduce_4mib_vs_best", ratios["best"])
    row.result("allreduce_4mib_vs_jax", ratios["jax"])
    return row


def measure_64mib(setup: Setup) -> Row:
    """Measures 64 MiB, where bandwidth counts."""
    row, ratios = _measure(setup, 64 * MIB, 3)
    if "torch" in ratios:
        row.result("allreduce_64mib_vs_torch", ratios["torch"])
    row.result("allreduce_64mib_vs_jax", ratios["jax"])
    return row
