"""Synchronous data parallelism over the devices of one process."""

from __future__ import annotations

from collections.abc import Sequence

import jax

from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.runtime.devices import default_devices, parse_devices
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.placement import Placement


class MirroredStrategy(MeshStrategy):
    """Trains on several devices of this process: each has a copy of all variables and a part of each global batch.

    Gradients are summed over the devices, so that all copies are updated alike and stay equal.

    Args:
        devices: Device names (`"gpu:0"`, `"/cpu:1"`) or JAX devices; by default every accelerator of the process, or
            every (virtual) CPU where there is none. An empty list means the default too.
        cross_device_ops: The algorithm that combines gradients; by default `NcclAllReduce`, XLA's own all-reduce.
        communication_options: How gradients are packed and compressed on the way.

    Raises:
        DeviceError: A device does not exist or comes twice.

    Example:
        >>> strategy = MirroredStrategy(devices=["cpu:0"])
        >>> strategy.num_replicas_in_sync
        1
    """

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
    ):
        found = parse_devices(devices) if devices is not None and len(devices) else default_devices()
        super().__init__(Placement(found), cross_device_ops, communication_options)
