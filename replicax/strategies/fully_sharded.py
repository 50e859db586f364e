"""Data parallelism with the state sharded over the devices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
from jax.sharding import PartitionSpec

from replicax.checks import is_int
from replicax.collectives import CommunicationOptions, CrossDeviceOps, NcclAllReduce
from replicax.errors import ArgumentError
from replicax.runtime.devices import chosen_devices
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.placement import Placement, cut_if_large
from replicax.variable_access import VariableLike, shape_of


class FullyShardedStrategy(MeshStrategy):
    """Trains like `MirroredStrategy`, but between steps each device holds only a part of every large variable.

    Parameters and optimizer state are cut along one dimension, so with N devices each needs about 1/N of the memory.
    Where a step uses one it is gathered, once in the forward pass and once in the backward pass; of each gradient a
    device keeps its own shard, and it updates its shard of the parameter: stage 3 of ZeRO (Rajbhandari et al., 2020),
    as in PyTorch's FSDP. In `Model.fit` XLA places the gathering. In `run` a step sees whole variables, and each is
    gathered just when an operation uses it. A loop of JAX's (`jax.lax.scan`) over stacked weights uses all of them at
    once.

    Args:
        devices: As for `MirroredStrategy`.
        min_size: Variables with fewer elements are mirrored: cutting them saves little and costs a message. Variables
            without a dimension that the number of devices divides are mirrored too; `explain` tells.
        cross_device_ops: The algorithm that combines gradients in `run`; by default XLA's own, one gradient at a time.
        communication_options: Its options. Gradients that they pack are summed as a whole.

    Raises:
        ArgumentError: `min_size` is not an int of at least 0.
        DeviceError: A device does not exist or comes twice.
    """

    def __init__(
        self,
        devices: int | Sequence[str | jax.Device] | None = None,
        min_size: int = 2**12,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
    ):
        if not is_int(min_size) or min_size < 0:
            raise ArgumentError(f"`min_size` is a number of elements, an int of at least 0, got {min_size!r}.")
        self.min_size = min_size
        found = chosen_devices(devices)
        if cross_device_ops is None and communication_options is None:
            cross_device_ops = NcclAllReduce(num_packs=0)  # Of a gradient in a pack no device could keep its shard.
        super().__init__(Placement(found, layout=self._layout), cross_device_ops, communication_options)

    def _layout(self, variable: VariableLike) -> PartitionSpec:
        return cut_if_large(variable, self.min_size, self.num_replicas_in_sync)

    def _why_mirrored(self, variable: VariableLike) -> str:
        if self.num_replicas_in_sync == 1:
            return "there is one device"
        size = math.prod(shape_of(variable))
        if size < self.min_size:
            return f"{size} elements, fewer than min_size={self.min_size}"
        return f"{self.num_replicas_in_sync} devices divide none of its dimensions"
