"""Eight virtual devices: our two loops against JAX by hand, sharded updates included."""

from __future__ import annotations

from peers.contest import Entry
from peers.row import Row, Setup, contest_row

DEVICES = 8
VIRTUAL = {"JAX_NUM_CPU_DEVICES": str(DEVICES), "NPROC": str(2 * DEVICES)}
"""What JAX needs for virtual devices; `rx.config.set_virtual_devices` sets the same."""


def by_hand(kinds: tuple[str, ...]) -> list[Entry]:
    """Returns hand-written steps."""
    return [
        Entry(f"JAX by hand, {kind}", "peers.jax_steps:replicas", {"kind": kind, "devices": DEVICES},
              environment=VIRTUAL)
        for kind in kinds
    ]  # fmt: skip


def measure(setup: Setup) -> Row:
    """Measures a step on eight virtual devices."""
    entries = [
        *by_hand(("shard_map", "packed", "gspmd", "zero1")),
        Entry("replicax, Keras loop", "peers.replicax_steps:loop", {"kind": "keras", "devices": DEVICES}),
        Entry("replicax, optax loop", "peers.replicax_steps:loop", {"kind": "optax", "devices": DEVICES}),
    ]
    row, outcome, best = contest_row(
        "eight virtual devices, a step", entries, setup.plan(rounds=11, steps=12, launches=2)
    )
    row.result("loop8_vs_best", outcome.ratios("replicax, Keras loop", best))
    row.result("loop8_optax_vs_best", outcome.ratios("replicax, optax loop", best))
    return row
