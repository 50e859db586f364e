"""Synchronous data parallelism over the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.checks import explained
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.runtime.numbers import checked_blocks
from replicax.runtime.precision import checked_precision
from replicax.strategies.mesh_placement import MeshPlacement, mesh_of_blocks
from replicax.strategies.mesh_strategy import MeshStrategy, checked_random_numbers
from replicax.strategies.sharded_update import checked_shard_update
from replicax.strategies.workers import own_devices


@explained
class MirroredStrategy(MeshStrategy):
    """Trains on several devices of this process: each has a copy of all variables and a part of each global batch.

    Gradients are summed over the devices, so that all copies are updated alike and stay equal.

    Args:
        devices: Device names (`"gpu:0"`, `"/cpu:1"`) or JAX devices; by default every accelerator of the process, or
            every (virtual) CPU where there is none. An empty list means the default too; a number the first so many.
            In one of several processes (under `replicax run`, say) give `jax.local_devices()` to train there alone.
        cross_device_ops: The algorithm that combines gradients; by default `NcclAllReduce`, XLA's own all-reduce.
        communication_options: How gradients are packed and compressed on the way.
        shard_update: Whether training shards optimizer state of at least 4,096 elements over the devices. Each device
            updates its shard of the parameters and then gets the others': less work and memory than N copies of the
            same update, and the same numbers (Xu et al., "Automatic Cross-Replica Sharding of Weight Update", 2020). In
            a custom loop that is any variable of this size that only the update in `run` reads. By default (None) it
            does, unless gradients travel as int8 or by PowerSGD: the parameters would travel in full, and take more
            than the compression saves.
        random_numbers: Where the random numbers of functions given to `run` come from. `"per_replica"` (the default):
            each replica draws its own. `"per_row"`: the replicas together draw what one device draws for the global
            batch, whatever their number; see the guide "Custom loops".
        precision: What Keras's layers made in the scope compute in: `"bf16"`, `"fp16"` or, on GPUs that have it,
            `"fp8"`. Variables, gradients and their sums stay in float32. None (the default) leaves Keras's own policy
            alone; see the guide "Mixed precision".
        numbers: `"bitwise"` lets a training have the same bits on any number of devices and processes: the strategy is
            one replica whatever its devices, steps see the global batch, and it is cut into blocks of rows that are
            computed, and added up, in the same way everywhere; see the guide "The same bits". None (the default) adds
            up in the order that is fastest.
        blocks: Into how many blocks, a power of two; by default 8. Of the devices the largest power of two up to that
            share the work.

    Raises:
        ArgumentError: `shard_update` is neither a bool nor None, or `random_numbers` is something else; `precision` is
            unknown, or a device cannot compute in it; `numbers` is something else, or `blocks` is no power of two.
        ClusterError: This is one of several processes, and `devices` are not given: each would train a copy of its own.
        ContextError: `numbers="bitwise"` comes too late: JAX has started, with another number of threads.
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
        *,
        random_numbers: str | None = None,
        precision: str | None = None,
        numbers: str | None = None,
        blocks: int | None = None,
    ):
        self.blocks = checked_blocks(
            numbers, blocks, cross_device_ops=cross_device_ops, communication_options=communication_options
        )
        found = own_devices(self, devices, "devices")
        super().__init__(MeshPlacement(*mesh_of_blocks(found, self.blocks)), cross_device_ops, communication_options)
        self.shard_update = checked_shard_update(shard_update, self.blocks is None, self.communication_options)
        self.random_numbers = checked_random_numbers(random_numbers)
        self.precision = checked_precision(precision, self.devices)
