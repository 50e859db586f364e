"""`fit` on one device: a step, and the start of an epoch, against Keras's own `fit`."""

from __future__ import annotations

import statistics

from peers.contest import Entry, hold
from peers.row import Row, Setup, contest_row

LONG = 40
CUTS = {
    "one epoch": {"steps": 40, "epochs": 1, "calls": 1},
    "20 epochs": {"steps": 2, "epochs": 20, "calls": 1},
    "20 calls": {"steps": 2, "epochs": 1, "calls": 20},
}
"""The same 40 steps in one epoch, in 20 epochs of a call, and in 20 calls: the differences are what a start costs."""
PROGRAMS = {"Keras's own fit": "peers.keras_steps:alone", "replicax, fit": "peers.keras_steps:replicax"}


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
        Entry(f"{name}, {cut}", program, {**options, "equal_rows": True}, checked=False)
        for name, program in PROGRAMS.items()
        for cut, options in CUTS.items()
    ]
    outcome = hold(entries, setup.plan(rounds=15, steps=1, launches=2, check_steps=2))
    row = Row("start of an epoch and of a call of fit, one device")
    for what, more, less, count in (("epoch", "20 epochs", "one epoch", 19), ("call", "20 calls", "20 epochs", 19)):
        starts = {
            name: [
                (b - a) / count
                for a, b in zip(outcome.medians[f"{name}, {less}"], outcome.medians[f"{name}, {more}"], strict=True)
            ]
            for name in PROGRAMS
        }
        theirs, ours = starts.values()
        for name, seconds in starts.items():
            row.lines.append((f"{name}: {what} start", statistics.median(seconds) * 1e3, None))
        row.result(f"{what}_start_ms", [1e3 * each for each in ours])
        row.result(f"keras_{what}_start_ms", [1e3 * each for each in theirs])
    return row
