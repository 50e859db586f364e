"""Two processes over Gloo: our two loops against JAX by hand and torch's DistributedDataParallel."""

from __future__ import annotations

from typing import Any

from peers.contest import Entry
from peers.row import Row, Setup, contest_row

ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}
DDP: dict[str, dict[str, Any]] = {
    "bucket view, static graph": {"gradient_as_bucket_view": True, "static_graph": True},
    "bucket view, static graph, 1 MB buckets": {
        "gradient_as_bucket_view": True, "static_graph": True, "bucket_cap_mb": 1,
    },
    "its defaults": {},
}  # fmt: skip
"""Settings of DDP, each with fused Adam, `zero_grad(set_to_none=True)` and one thread a process."""


def measure(setup: Setup) -> Row:
    """Measures a step on two processes."""
    entries = [
        *(
            Entry(f"JAX by hand, {kind}", "peers.jax_steps:processes", {"kind": kind}, workers=2,
                  environment=ONE_DEVICE)
            for kind in ("shard_map", "packed")
        ),
        *(
            Entry(f"replicax, {kind} loop", "peers.replicax_steps:loop",
                  {"kind": kind.lower(), "strategy": "workers"}, workers=2, environment=ONE_DEVICE)
            for kind in ("Keras", "optax")
        ),
    ]  # fmt: skip
    if setup.torch:
        entries += [
            Entry(f"torch DDP, {name}", "peers.torch_steps:ddp", settings, python=setup.torch, workers=2,
                  environment={"OMP_NUM_THREADS": "1"})
            for name, settings in DDP.items()
        ]  # fmt: skip
    row, outcome, _ = contest_row("two processes, a step", entries, setup.plan(rounds=11, steps=25, launches=3))
    by_hand = outcome.best(["JAX by hand, shard_map", "JAX by hand, packed"])
    row.result("workers2_vs_jax", outcome.ratios("replicax, Keras loop", by_hand))
    if not setup.torch:
        row.notes.append("torch is missing: no figure against DDP")
        return row
    ddp = outcome.best([f"torch DDP, {name}" for name in DDP])
    row.notes.append(f"quickest DDP: {ddp}, with fused Adam, set_to_none, one thread a process")
    row.result("workers2_vs_ddp", outcome.ratios("replicax, Keras loop", ddp))
    row.result("workers2_optax_vs_ddp", outcome.ratios("replicax, optax loop", ddp))
    return row
