"""`fit` on one device: a step, and the start of an epoch, against Keras's own `fit`."""

from __future__ import annotations

import statistics

from peers.contest import Entry, hold
from peers.row import Row, Setup, contest_row

LONG = 40


def measure(setup: Setup) -> Row:
    """Measures a step of long epochs."""
    entries = [
        Entry("Keras's own fit", "peers.keras_steps:alone", {"steps": LONG}, steps_per_call=LONG),
        Entry("replicax, fit", "peers.keras_steps:replicax", {"steps": LONG}, steps_per_call=LONG),
    ]
    plan = setup.plan(rounds=11, steps=2, launches=3, tolerance=1e-2, check_steps=1)
    row, outcome, best = contest_row("fit on one device, a step", entries, plan)
    row.result("fit_vs_keras_fit", outcome.ratios("replicax, fit", best))
    return row


def measure_starts(setup: Setup) -> Row:
    """Measures how much longer the same steps take in many epochs, and in many calls."""
    entries = [
        Entry("Keras's own fit", "peers.keras_steps:starts", {"ours": False}),
        Entry("replicax, fit", "peers.keras_steps:starts", {"ours": True}),
    ]
    outcome = hold(entries, setup.plan(rounds=13, steps=1, launches=2, tolerance=1e-2, check_steps=1))
    row = Row("start of an epoch, and of a call of fit with one epoch; one device")
    for what in ("epoch", "call"):
        theirs, ours = (outcome.medians[f"{entry.name}: {what}"] for entry in entries)
        for entry, seconds in zip(entries, (theirs, ours), strict=True):
            row.lines.append((f"{entry.name}: {what}", statistics.median(seconds) * 1e3, None))
        row.result(f"{what}_start_ms", [1e3 * each for each in ours])
        row.result(f"keras_{what}_start_ms", [1e3 * each for each in theirs])
    return row
