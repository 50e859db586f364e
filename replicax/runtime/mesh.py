"""Meshes: the devices of a strategy as an array with one named axis, and the placements that replicax uses."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

REPLICA_AXIS = "replica"


def replica_mesh(devices: Sequence[jax.Device]) -> Mesh:
    """Returns a mesh with the single axis `"replica"`, one device a replica."""
    # Auto: XLA's partitioner places whatever is not placed explicitly.
    return Mesh(np.array(devices, dtype=object), (REPLICA_AXIS,), axis_types=(AxisType.Auto,))


@functools.lru_cache(maxsize=256)
def mirrored_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of a mirrored value: every device of `mesh` holds all of it."""
    return NamedSharding(mesh, PartitionSpec())


@functools.lru_cache(maxsize=256)
def stacked_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the placement of a stacked value of shape `(num_replicas, ...)`: device i holds row i."""
    return NamedSharding(mesh, PartitionSpec(REPLICA_AXIS))


def forget_meshes() -> None:
    """Lets go of the meshes that `mirrored_sharding` and `stacked_sharding` remember, and so of their devices."""
    mirrored_sharding.cache_clear()
    stacked_sharding.cache_clear()


def longest_divisible(shape: Sequence[int], parts: int, taken: Iterable[int] = ()) -> int | None:
    """Returns the longest dimension that `parts` divides, the first of several; None if there is none.

    Example:
        >>> longest_divisible((700, 512), 8)
        1
    """
    taken = set(taken)
    divisible = [(length, -i) for i, length in enumerate(shape) if length and length % parts == 0 and i not in taken]
    return -max(divisible)[1] if divisible else None
