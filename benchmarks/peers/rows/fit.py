"""`fit` on one device: a step, and the start of an epoch, against Keras's own `fit`."""

from __future__ import annotations

from peers.contest import Entry, hold
from peers.row import Row, Setup, contest_row

LONG = 40
EPOCHS = (2, 20)
"""The start of an epoch: the same number of steps in 2 and in 20 epochs."""


def measure(setup: Setup) -> Row:
    """Measures a step of long epochs, and by how much many short epochs take longer than few."""
    entries = [
        Entry("Keras's own fit", "peers.keras_steps:alone", {"steps": LONG}, steps_per_call=LONG),
        Entry("replicax, fit", "peers.keras_steps:replicax", {"steps": LONG}, steps_per_call=LONG),
    ]
    plan = setup.plan(rounds=11, steps=2, launches=3, tolerance=1e-2, check_steps=1)
    row, outcome, best = contest_row("fit on one device, a step", entries, plan)
    row.result("fit_vs_keras_fit", outcome.ratios("replicax, fit", best))
    _epoch_starts(setup, row)
    return row


def _epoch_starts(setup: Setup, row: Row) -> None:
    steps = EPOCHS[1]
    entries = [
        Entry(f"{name}, {epochs} epochs", program, {"steps": steps // epochs * 2, "epochs": epochs}, checked=False)
        for name, program in (("Keras's own fit", "peers.keras_steps:alone"),
                              ("replicax, fit", "peers.keras_steps:replicax"))
        for epochs in EPOCHS
    ]  # fmt: skip
    outcome = hold(entries, setup.plan(rounds=11, steps=1, launches=2, check_steps=2))
    starts = {}
    for name in ("Keras's own fit", "replicax, fit"):
        few, many = (outcome.medians[f"{name}, {epochs} epochs"] for epochs in EPOCHS)
        starts[name] = [(b - a) / (EPOCHS[1] - EPOCHS[0]) for a, b in zip(few, many, strict=True)]
    theirs, ours = starts.values()
    for name, seconds in starts.items():
        row.lines.append((f"{name}: start of an epoch", sum(seconds) / len(seconds) * 1e3, sum(seconds) / sum(theirs)))
    row.result("epoch_start_ms", [1e3 * each for each in ours])
    row.result("epoch_start_vs_keras", [a / b for a, b in zip(ours, theirs, strict=True)])
