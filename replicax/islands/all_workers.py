"""A meeting of all workers of a job: each takes part in every exchange."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax.runtime.activity as activity
from replicax.cluster.exchange import exchanged
from replicax.collectives import NcclAllReduce
from replicax.group.membership.meeting import Quorum
from replicax.runtime import turns
from replicax.runtime.calls import together

_AXIS = "island"
_OPS = NcclAllReduce(num_packs=4)


class AllWorkers:
    """The workers of a job as islands; the sums are all-reduces between the first devices of each."""

    def __init__(self, names: Sequence[str], index: int, devices: Sequence[jax.Device]):
        self.names, self.index, self.size = tuple(names), index, len(names)
        self._mesh = Mesh(np.array(devices), (_AXIS,))
        self._number = 0
        self._sums = jax.jit(self._summed)

    def gather(self, what: str, note: bytes) -> Quorum:
        """Waits for all workers; see `membership.Meeting`."""
        self._number += 1
        if self.size == 1:
            return Quorum(self._number, (0,), (note,))
        with activity.phase(activity.WAIT, what):
            notes = exchanged(note)
        return Quorum(self._number, tuple(range(self.size)), tuple(notes))

    def total(self, quorum: Quorum, values: Sequence[jax.Array]) -> list[jax.Array]:
        """Returns the sums of `values` over all workers; see `membership.Meeting`."""
        del quorum
        if self.size == 1 or not values:
            return list(values)
        kinds = ", ".join(sorted({str(value.dtype) for value in values}))
        with together("islands", f"{len(values)} arrays of {kinds}") as call:
            with turns.of_thread(), turns.DISPATCH: sums = self._sums(self._stacked(values))  # noqa: E701  # fmt: skip
            call.sent(sums[0])
            return [each.addressable_data(0) for each in sums]

    def lower(self, values: Sequence[jax.Array]) -> jax.stages.Lowered:
        """Returns the program that sums `values`, as JAX lowers it."""
        return self._sums.lower(self._stacked(values))

    def _stacked(self, values: Sequence[jax.Array]) -> list[jax.Array]:
        rows = NamedSharding(self._mesh, PartitionSpec(_AXIS))
        return [
            jax.make_array_from_single_device_arrays((self.size, *value.shape), rows, [value[None]]) for value in values
        ]

    def _summed(self, stacked: list[jax.Array]) -> list[jax.Array]:
        def of_one(rows: list[jax.Array]) -> list[jax.Array]:
            return _OPS.all_reduce("sum", [row[0] for row in rows], axis_name=_AXIS, num_replicas=self.size)

        mapped = jax.shard_map(of_one, mesh=self._mesh, in_specs=PartitionSpec(_AXIS), out_specs=PartitionSpec())
        sums: list[jax.Array] = mapped(stacked)
        return sums
