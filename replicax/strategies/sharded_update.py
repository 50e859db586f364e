"""An optimizer's state sharded over replicas that mirror everything else."""

from __future__ import annotations

from jax.sharding import NamedSharding, Sharding

from replicax.collectives.compression import is_of_gradients
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.placement import cut_if_large

_MIN_SHARDED_SIZE = 2**12  # elements; below, a message costs more than the copies of the update


class ShardsUpdate(MeshStrategy):
    """A strategy that may shard the update of its variables over its replicas.

    Each replica gets its shard of the summed gradient (reduce-scatter), updates its shard of the parameter with its
    shard of the optimizer's state, and all get the new parameter (all-gather): stage 1 of ZeRO.

    Attributes:
        shard_update: Whether it does.

    References:
        Y. Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training", 2020
        (arXiv:2004.13336). S. Rajbhandari et al., "ZeRO", 2020 (arXiv:1910.02054).
    """

    shard_update = False

    def _checked_shard_update(self, shard_update: bool | None, default: bool) -> bool:
        """Returns what a user has chosen; where that is None, the default, unless gradients are compressed."""
        if shard_update is not None and not isinstance(shard_update, bool):
            raise ArgumentError(f"`shard_update` must be True, False or None, got {shard_update!r:.100}.")
        compresses = is_of_gradients(self.communication_options.compression)
        return default and not compresses if shard_update is None else shard_update

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable of an optimizer lives while a step updates it."""
        if not self.shard_update:
            return super().optimizer_sharding(variable)
        layout = cut_if_large(variable, _MIN_SHARDED_SIZE, self.num_replicas_in_sync)
        return NamedSharding(self.placement.mesh_for(self.num_replicas_in_sync), layout)
