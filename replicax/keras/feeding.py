"""Feeding: how the global batches of `Model.fit` get onto the devices of a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax.errors import BatchError
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.values import PerReplica, is_per_replica


class Feed:
    """Places batches.

    A batch whose rows divide by the number of replicas is cut on the way to the devices. Any other goes to each device
    whole and is cut inside the compiled step, where XLA can cut any number of rows: nothing is lost, and user code
    sees no padding.

    Args:
        strategy: The strategy; batches are cut over the axis `"replica"` of its mesh.
    """

    def __init__(self, strategy: Any):
        self._replicas = strategy.num_replicas_in_sync
        mesh = strategy.mesh
        self._cut = NamedSharding(mesh, PartitionSpec(REPLICA_AXIS))
        self._whole = NamedSharding(mesh, PartitionSpec())

    def placed(self, data: Any) -> Any:
        """Returns the batch `data`, a nest of arrays with rows first (or None), on the devices.

        Raises:
            BatchError: There are no rows.
        """
        leaves, treedef = jax.tree_util.tree_flatten(data, is_leaf=is_per_replica)
        arrays = [_rows(leaf) for leaf in leaves]
        if any(np.ndim(array) > 0 and array.shape[0] == 0 for array in arrays):
            shapes = [np.shape(array) for array in arrays]
            raise BatchError(f"A batch has no rows: its arrays have shapes {shapes}. Each step needs at least one row.")
        return jax.tree_util.tree_unflatten(treedef, jax.device_put(arrays, [self._sharding(a) for a in arrays]))

    def _sharding(self, array: Any) -> NamedSharding:
        divides = np.ndim(array) > 0 and array.shape[0] % self._replicas == 0
        return self._cut if divides else self._whole

    def constrained(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `step(state, data)` with `data` cut along its rows inside."""

        def constrained_step(state: Any, data: Any) -> Any:
            def cut(leaf: Any) -> Any:
                if not isinstance(leaf, jax.core.Tracer) or leaf.ndim == 0 or leaf.shape[0] < self._replicas:
                    return leaf
                return jax.lax.with_sharding_constraint(leaf, self._cut)

            return step(state, jax.tree_util.tree_map(cut, data))

        constrained_step.__name__ = getattr(step, "__name__", "step")
        return constrained_step


def _rows(leaf: Any) -> Any:
    """Returns a leaf of a batch as one array of global rows."""
    if isinstance(leaf, PerReplica):
        stacked = leaf.stacked
        return stacked.reshape(stacked.shape[0] * stacked.shape[1], *stacked.shape[2:])
    return leaf
