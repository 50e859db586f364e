"""Devices and device meshes."""

from replicax.runtime.devices import chosen_devices, default_devices, device_name, parse_devices, set_virtual_devices
from replicax.runtime.mesh import REPLICA_AXIS, mirrored_sharding, replica_mesh, stacked_sharding

__all__ = [
    "REPLICA_AXIS",
    "chosen_devices",
    "default_devices",
    "device_name",
    "mirrored_sharding",
    "parse_devices",
    "replica_mesh",
    "set_virtual_devices",
    "stacked_sharding",
]
