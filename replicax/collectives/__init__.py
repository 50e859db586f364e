"""Cross-device ops: the algorithms that sum the replicas' values."""

from replicax.collectives.automatic import AutomaticAllReduce, sums_small_values
from replicax.collectives.choose import choose_cross_device_ops
from replicax.collectives.compressed import compressed_all_reduce, forgetful_all_reduce
from replicax.collectives.compression import Compression, Int8, Memory, PowerSGD, computing_dtype
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.hierarchical import HierarchicalCopyAllReduce
from replicax.collectives.nccl import NcclAllReduce
from replicax.collectives.one_device import ReductionToOneDevice
from replicax.collectives.options import CommunicationImplementation, CommunicationOptions
from replicax.collectives.ring import RingAllReduce

__all__ = [
    "AutomaticAllReduce",
    "CommunicationImplementation",
    "CommunicationOptions",
    "Compression",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "Int8",
    "Memory",
    "NcclAllReduce",
    "PowerSGD",
    "ReductionToOneDevice",
    "RingAllReduce",
    "choose_cross_device_ops",
    "compressed_all_reduce",
    "computing_dtype",
    "forgetful_all_reduce",
    "sums_small_values",
]
