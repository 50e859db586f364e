"""Central storage on two devices: ours against TensorFlow's, and beside our mirrored strategy."""

from __future__ import annotations

from typing import Any

from peers.contest import Entry
from peers.row import Row, Setup, contest_row

TENSORFLOW: dict[str, dict[str, Any]] = {
    "legacy Adam": {"optimizer": "legacy"},
    "legacy Adam, one thread a kernel": {"optimizer": "legacy", "intra": 1},
    "new Adam": {"optimizer": "new"},
}


def measure(setup: Setup) -> Row:
    """Measures a step on two devices with the variables on one."""
    entries = [
        Entry("replicax, CentralStorageStrategy", "peers.replicax_steps:loop",
              {"kind": "keras", "strategy": "central", "devices": 2}),
        Entry("replicax, MirroredStrategy", "peers.replicax_steps:loop", {"kind": "keras", "devices": 2}),
    ]  # fmt: skip
    if setup.tensorflow:
        entries += [
            Entry(f"TensorFlow, {name}", "peers.tensorflow_steps:central", {"devices": 2, **options},
                  python=setup.tensorflow)
            for name, options in TENSORFLOW.items()
        ]  # fmt: skip
    plan = setup.plan(rounds=11, steps=30, launches=3)
    row, outcome, best = contest_row("central storage, two devices, a step", entries, plan)
    row.result("central2_vs_mirrored", outcome.ratios(entries[0].name, entries[1].name))
    if setup.tensorflow:
        row.notes.append(f"quickest: {best}")
        row.result("central2_vs_tf", outcome.ratios(entries[0].name, best))
    else:
        row.notes.append("TensorFlow is missing: no figure against it")
    return row
