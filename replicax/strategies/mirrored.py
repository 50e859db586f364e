"""Synchronous data parallelism over the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import NamedSharding, Sharding

from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.collectives.compression import is_of_gradients
from replicax.errors import ArgumentError
from replicax.runtime.devices import chosen_devices
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.placement import Placement, cut_if_large
from replicax.variable_access import VariableLike

_MIN_SHARDED_SIZE = 2**12  # elements; below, a message costs more than the copies of the update


class MirroredStrategy(MeshStrategy):
    """Trains on several devices of this process: each has a copy of all variables and a part of each global batch.

    Gradients are summed over the devices, so that all copies are updated alike and stay equal.

    Args:
        devices: Device names (`"gpu:0"`, `"/cpu:1"`) or JAX devices; by default every accelerator of the process, or
            every (virtual) CPU where there is none. An empty list means the default too; a number the first so many.
        cross_device_ops: The algorithm that combines gradients; by default `NcclAllReduce`, XLA's own all-reduce.
        communication_options: How gradients are packed and compressed on the way.
        shard_update: Whether training shards optimizer state of at least 4,096 elements over the devices. Each device
            updates its shard of the parameters and then gets the others': less work and memory than N copies of the
            same update, and the same numbers (Xu et al., "Automatic Cross-Replica Sharding of Weight Update", 2020). In
            a custom loop that is any variable of this size that only the update in `run` reads. By default (None) it
            does, unless gradients travel as int8 or by PowerSGD: the parameters would travel in full, and take more
            than the compression saves.

    Raises:
        ArgumentError: `shard_update` is neither a bool nor None.
        DeviceError: A device does not exist or comes twice.

    Example:
        >>> strategy = MirroredStrategy(devices=["cpu:0"])
        >>> strategy.num_replicas_in_sync
        1
    """

    def __init__(
        self,
        devices: int | Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
        shard_update: bool | None = None,
    ):
        found = chosen_devices(devices)
        super().__init__(Placement(found), cross_device_ops, communication_options)
        if shard_update is not None and not isinstance(shard_update, bool):
            raise ArgumentError(f"`shard_update` must be True, False or None, got {shard_update!r:.100}.")
        compresses = is_of_gradients(self.communication_options.compression)
        self.shard_update = not compresses if shard_update is None else shard_update

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable of an optimizer lives while a step updates it."""
        if not self.shard_update:
            return super().optimizer_sharding(variable)
        layout = cut_if_large(variable, _MIN_SHARDED_SIZE, self.num_replicas_in_sync)
        return NamedSharding(self.placement.mesh_for(self.num_replicas_in_sync), layout)
