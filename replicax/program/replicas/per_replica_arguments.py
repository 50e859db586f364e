"""Per-replica values as one replica sees them: by their components."""

from __future__ import annotations

from collections.abc import Callable

import jax

from replicax.program.flax.modules import around_modules
from replicax.typing import Leaf, PyTree
from replicax.values import ManualPerReplica, PerReplica, is_per_replica
from replicax.values.containers import opened


def without_per_replica(tree: PyTree, component_of: Callable[[jax.Array], Leaf] | None = None) -> PyTree:
    """Replaces each per-replica value in `tree` by this replica's component, inside `shard_map`."""

    def component(leaf: Leaf) -> Leaf:
        if isinstance(leaf, PerReplica):
            # Its row for this replica is right for a value that was captured or computed outside.
            return leaf.own() if component_of is None else component_of(leaf.stacked)
        return leaf.component if isinstance(leaf, ManualPerReplica) else leaf

    return around_modules(lambda tree: jax.tree_util.tree_map(component, opened(tree), is_leaf=is_per_replica), tree)
