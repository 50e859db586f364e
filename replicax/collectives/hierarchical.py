"""A sum in two levels: inside groups of neighbours, then across the groups."""

from __future__ import annotations

import dataclasses

import jax

from replicax.checks import checked_int
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.trees import copy_from_heads, sum_to_heads
from replicax.compat.jax_primitives import assert_equal_over_axis


@dataclasses.dataclass(frozen=True)
class HierarchicalCopyAllReduce(CrossDeviceOps):
    """Sums inside groups of neighbouring replicas, then the groups' sums, then copies the total back the same way.

    For devices of which some are joined by faster links than others: only one value a group crosses the slow ones.
    Each level is a binary tree of sends, so any number of replicas will do; the last group may be smaller.

    Attributes:
        num_packs: Number of packs into which the small values of one dtype are joined, 0 for none. Values above 64 KiB
            are never joined: copying them costs more than it saves. Within one process a pack holds 8 arrays at most.
        group_size: Number of neighbours in a group, such as the devices of one machine; by default the power of two
            next to the square root of the number of replicas (8 replicas: two groups of 4).

    Raises:
        ArgumentError: `num_packs` is not an int of at least 0, or `group_size` not one of at least 1.

    Example:
        >>> import jax.numpy as jnp
        >>> strategy = rx.MirroredStrategy(cross_device_ops=rx.HierarchicalCopyAllReduce(group_size=2))
        >>> int(strategy.reduce("sum", strategy.run(lambda: jnp.ones(())), axis=None))
        8
    """

    num_packs: int = 1
    group_size: int | None = None

    def __post_init__(self) -> None:
        checked_int("num_packs", self.num_packs, note=" (0: no packs)")
        if self.group_size is not None:
            checked_int("group_size", self.group_size, least=1, note=", or None to choose one")

    def _all_reduce_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        groups = _groups(num_replicas, self.group_size or default_group_size(num_replicas))
        heads = [[group[0] for group in groups]]

        def total(buffer: jax.Array) -> jax.Array:
            buffer = sum_to_heads(buffer, groups, axis_name)
            buffer = sum_to_heads(buffer, heads, axis_name)
            buffer = copy_from_heads(buffer, heads, axis_name)
            buffer = copy_from_heads(buffer, groups, axis_name)
            # Every replica now holds a copy of what replica 0, the head of the heads, has summed.
            return assert_equal_over_axis(buffer, axis_name)

        return [total(buffer) for buffer in buffers]


def default_group_size(num_replicas: int) -> int:
    """Returns about the square root, as a power of two: with another number binary trees waste a round."""
    levels = (num_replicas - 1).bit_length()
    return 1 << (levels + 1) // 2


def _groups(num_replicas: int, size: int) -> list[list[int]]:
    return [list(range(start, min(start + size, num_replicas))) for start in range(0, num_replicas, size)]
