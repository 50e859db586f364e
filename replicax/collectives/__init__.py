"""Cross-device ops: the algorithms that sum the replicas' values."""

from replicax.collectives.compression import Int8, PowerSGD
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.hierarchical import HierarchicalCopyAllReduce
from replicax.collectives.nccl import NcclAllReduce
from replicax.collectives.one_device import ReductionToOneDevice
from replicax.collectives.options import CommunicationImplementation, CommunicationOptions
from replicax.collectives.ring import RingAllReduce

__all__ = [
    "CommunicationImplementation",
    "CommunicationOptions",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "Int8",
    "NcclAllReduce",
    "PowerSGD",
    "ReductionToOneDevice",
    "RingAllReduce",
]
