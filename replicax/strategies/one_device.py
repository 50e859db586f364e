"""Everything on one device: the oracle that the other strategies are compared with."""

from __future__ import annotations

import jax

from replicax.runtime.devices import parse_devices
from replicax.runtime.precision import checked_precision
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.strategies.mesh_strategy import MeshStrategy


class OneDeviceStrategy(MeshStrategy):
    """Places all variables and all computation on one device.

    Use it to try a distributed program where there is only one device, or as the reference for what several compute.

    Args:
        device: Device name such as `"gpu:0"`, or a JAX device.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.

    Raises:
        ArgumentError: `precision` is unknown, or the device cannot compute in it.
        DeviceError: The device does not exist.

    Example:
        >>> strategy = OneDeviceStrategy("cpu:0")
        >>> float(strategy.run(lambda x: x + 1, args=(1.0,)))
        2.0
    """

    def __init__(self, device: str | jax.Device, *, precision: str | None = None):
        super().__init__(MeshPlacement(parse_devices([device])))
        self.precision = checked_precision(precision, self.devices)
