"""XLA's own all-reduce: the default."""

from __future__ import annotations

import dataclasses

import jax

from replicax.checks import checked_int
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.compat.jax_primitives import assert_equal_over_axis


@dataclasses.dataclass(frozen=True)
class NcclAllReduce(CrossDeviceOps):
    """One `lax.psum` of all values; XLA chooses the algorithm: NCCL on GPUs, ICI on TPUs, Gloo between CPU processes.

    Attributes:
        num_packs: Number of packs into which the small values of one dtype are joined, 0 for none. Values above 64 KiB
            are never joined: copying them costs more than it saves. Within one process a pack holds 8 arrays at most.

    Raises:
        ArgumentError: `num_packs` is not an int of at least 0.

    Example:
        >>> strategy = rx.MirroredStrategy(cross_device_ops=rx.NcclAllReduce(num_packs=2))
    """

    num_packs: int = 1

    def __post_init__(self) -> None:
        checked_int("num_packs", self.num_packs, note=" (0: no packs)")

    def _all_reduce_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        if num_replicas == 1:
            # XLA's CPU compiler keeps an all-reduce among one.
            return [assert_equal_over_axis(buffer, axis_name) for buffer in buffers]
        summed: list[jax.Array] = jax.lax.psum(buffers, axis_name)
        return summed
