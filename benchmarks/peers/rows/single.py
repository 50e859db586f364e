"""One device: our two loops against JAX by hand."""

from __future__ import annotations

from peers.contest import Entry
from peers.row import Row, Setup, contest_row


def measure(setup: Setup) -> Row:
    """Measures a step on one device."""
    entries = [
        Entry("JAX by hand, jit", "peers.jax_steps:replicas", {"kind": "jit"}),
        Entry("JAX by hand, shard_map", "peers.jax_steps:replicas", {"kind": "shard_map"}),
        Entry("replicax, Keras loop", "peers.replicax_steps:loop", {"kind": "keras"}),
        Entry("replicax, optax loop", "peers.replicax_steps:loop", {"kind": "optax"}),
    ]
    row, outcome, best = contest_row("one device, a step", entries, setup.plan(rounds=15, steps=40))
    row.result("single_keras_vs_jax", outcome.ratios("replicax, Keras loop", best))
    row.result("single_optax_vs_jax", outcome.ratios("replicax, optax loop", best))
    return row
