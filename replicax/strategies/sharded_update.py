"""An optimizer's state sharded over replicas that mirror everything else.

Each replica gets its shard of the summed gradient (reduce-scatter), updates its shard of the parameter with its shard
of the optimizer's state, and all get the new parameter (all-gather): stage 1 of ZeRO.

References:
    Y. Xu et al., "Automatic Cross-Replica Sharding of Weight Update in Data-Parallel Training", 2020
    (arXiv:2004.13336). S. Rajbhandari et al., "ZeRO", 2020 (arXiv:1910.02054).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax.sharding import PartitionSpec

from replicax.collectives import CommunicationOptions
from replicax.collectives.compression import is_of_gradients
from replicax.contracts.variable_access import VariableLike, shape_of
from replicax.errors import ArgumentError
from replicax.runtime.mesh import REPLICA_AXIS, longest_divisible

_MIN_SIZE = 2**12  # elements; below, a message costs more than the copies of the update


def checked_shard_update(shard_update: bool | None, default: bool, options: CommunicationOptions) -> bool:
    """Returns what a user has chosen; where that is None, the default, unless gradients are compressed."""
    if shard_update is not None and not isinstance(shard_update, bool):
        raise ArgumentError(f"`shard_update` must be True, False or None, got {shard_update!r:.100}.")
    return default and not is_of_gradients(options.compression) if shard_update is None else shard_update


def update_layout(variable: VariableLike, parts: int) -> PartitionSpec:
    """Returns the layout in which a step updates a variable: large ones are cut."""
    shape = shape_of(variable)
    return largest_divisible_cut(shape, parts) if math.prod(shape) >= _MIN_SIZE else PartitionSpec()


def largest_divisible_cut(shape: Sequence[int], parts: int) -> PartitionSpec:
    """Returns the layout that cuts the longest dimension that `parts` divides; none if there is no such dimension.

    Example:
        >>> largest_divisible_cut((700, 512), 8)
        P(None, 'replica')
    """
    cut = longest_divisible(shape, parts)
    return PartitionSpec() if cut is None else PartitionSpec(*[None] * cut, REPLICA_AXIS)
