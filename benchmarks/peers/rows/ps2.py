"""Parameter servers, two workers and one server: ours against TensorFlow's, and against one process alone."""

from __future__ import annotations

from typing import Any

from peers.contest import Entry
from peers.row import Row, Setup, contest_row

ALONE, OURS = "JAX by hand, one process", "replicax, 2 workers, 1 server"
TENSORFLOW: dict[str, dict[str, Any]] = {
    "legacy Adam": {"optimizer": "legacy"},
    "legacy Adam, one thread a kernel": {"optimizer": "legacy", "intra": 1},
}


def measure(setup: Setup) -> Row:
    """Measures wall-clock time by steps that all workers together have made; each has a batch of 128."""
    cluster = {"workers": 2, "servers": 1}
    entries = [
        Entry(ALONE, "peers.jax_steps:replicas", {"kind": "jit"}),
        Entry(OURS, "peers.replicax_steps:servers", cluster),
    ]
    if setup.tensorflow:
        entries += [
            Entry(f"TensorFlow, {name}", "peers.tensorflow_steps:servers", {**cluster, **options},
                  python=setup.tensorflow)
            for name, options in TENSORFLOW.items()
        ]  # fmt: skip
    plan = setup.plan(rounds=9, steps=60, launches=2)
    row, outcome, _ = contest_row("parameter server, two workers, one server, a step", entries, plan)
    row.result("ps2_vs_one_process", outcome.ratios(OURS, ALONE))
    if setup.tensorflow:
        theirs = outcome.best([f"TensorFlow, {name}" for name in TENSORFLOW])
        row.result("ps2_vs_tf", outcome.ratios(OURS, theirs))
    else:
        row.notes.append("TensorFlow is missing: no figure against it")
    return row
