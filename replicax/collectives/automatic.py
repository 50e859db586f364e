"""XLA's all-reduce, and for small values between CPU processes something with fewer messages: the automatic choice.

Between CPU processes XLA's all-reduce is Gloo's ring. It sends each half of a chunk by itself, `4 (N-1)` messages one
after the other, and for each of them threads wake up on both sides: that is all that a small value costs. Gathering the
values of all N replicas takes half as many messages, of which two are under way at a time. Then each replica adds them
up in the order of the replicas, and so all get the same bits. A large value is moved `N / 2` times as often as in the
ring, and added up less efficiently, so it goes to XLA's all-reduce, as do all values on GPUs and TPUs and within one
process.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence

import jax

from replicax.collectives.nccl import NcclAllReduce
from replicax.collectives.packing import JOINED_BYTES
from replicax.compat.jax_primitives import assert_equal_over_axis

GATHERED_BYTES = 256 * 1024
"""Up to how many bytes of all replicas together a value is gathered.

Measured with two processes (milliseconds, gathered against XLA's all-reduce): 4 KiB of each 0.08 and 0.12, 64 KiB 0.09
and 0.12, 128 KiB 0.11 and 0.16, 192 KiB 0.21 and 0.15, 512 KiB 0.48 and 0.33.
"""


@dataclasses.dataclass(frozen=True)
class AutomaticAllReduce(NcclAllReduce):
    """The default of strategies: `NcclAllReduce`, with larger packs and small ones gathered between CPU processes."""

    gathers: bool = False  # whether small values are gathered; `for_devices` sets it

    @property
    def bytes_per_pack(self) -> int:
        """Packs between CPU processes are large."""
        return JOINED_BYTES if self.gathers and self.num_packs else 0

    def for_devices(self, devices: Sequence[jax.Device]) -> AutomaticAllReduce:
        spans_processes = len({device.process_index for device in devices}) > 1
        return dataclasses.replace(self, gathers=spans_processes and all(d.platform == "cpu" for d in devices))

    def _all_reduce_sum(self, buffers: list[jax.Array], axis_name: str, num_replicas: int) -> list[jax.Array]:
        if not self.gathers or num_replicas == 1:
            return super()._all_reduce_sum(buffers, axis_name, num_replicas)

        def total(buffer: jax.Array) -> jax.Array:
            if buffer.nbytes * num_replicas <= GATHERED_BYTES:
                return _gathered_sum(buffer, axis_name, num_replicas)
            summed: jax.Array = jax.lax.psum(buffer, axis_name)
            return summed

        return [total(buffer) for buffer in buffers]


def automatic() -> AutomaticAllReduce:
    """Returns the default for replicas on all devices of the job."""
    return AutomaticAllReduce(gathers=jax.process_count() > 1 and jax.default_backend() == "cpu")


def _gathered_sum(buffer: jax.Array, axis_name: str, num_replicas: int) -> jax.Array:
    """Returns the sum over the axis, added up on each replica in the order of the replicas."""
    everyone = jax.lax.all_gather(buffer, axis_name)
    return assert_equal_over_axis(
        functools.reduce(operator.add, map(everyone.__getitem__, range(num_replicas))), axis_name
    )
