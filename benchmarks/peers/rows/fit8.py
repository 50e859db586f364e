"""`fit` on eight virtual devices, against bare loops that feed batches, and against Keras's DataParallel."""

from __future__ import annotations

from peers.contest import Entry
from peers.row import Row, Setup, contest_row
from peers.rows.loop8 import DEVICES, VIRTUAL

STEPS = 20


def measure(setup: Setup) -> Row:
    """Measures a step of an epoch. A bare loop takes rows, places them and makes a step; the best one counts."""
    entries = [
        *(
            Entry(f"bare loop, {kind}", "peers.jax_steps:fed", {"kind": kind, "devices": DEVICES, "steps": STEPS},
                  environment=VIRTUAL, steps_per_call=STEPS)
            for kind in ("shard_map", "gspmd", "zero1")
        ),
        Entry("Keras's fit, DataParallel", "peers.keras_steps:data_parallel", {"steps": STEPS}, environment=VIRTUAL,
              steps_per_call=STEPS),
        Entry("replicax, fit", "peers.keras_steps:replicax", {"steps": STEPS, "devices": DEVICES},
              steps_per_call=STEPS),
        Entry("replicax, bare loop", "peers.replicax_steps:fed", {"steps": STEPS, "devices": DEVICES},
              steps_per_call=STEPS),
    ]  # fmt: skip
    row, outcome, _ = contest_row(
        "fit on eight virtual devices, a step",
        entries,
        setup.plan(rounds=9, steps=1, launches=2, tolerance=1e-2, check_steps=1),
    )
    bare = outcome.best([entry.name for entry in entries if entry.name.startswith("bare loop")])
    row.notes.append(f"quickest of the bare loops by hand: {bare}")
    row.result("fit8_vs_bare_loop", outcome.ratios("replicax, fit", bare))
    row.result("fit8_vs_own_loop", outcome.ratios("replicax, fit", "replicax, bare loop"))
    row.result("fit8_vs_data_parallel", outcome.ratios("replicax, fit", "Keras's fit, DataParallel"))
    return row
