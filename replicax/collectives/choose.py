"""From options to an algorithm, where the user did not name one."""

from __future__ import annotations

from replicax.collectives.automatic import AutomaticAllReduce
from replicax.collectives.cross_device_ops import CrossDeviceOps
from replicax.collectives.nccl import NcclAllReduce
from replicax.collectives.options import CommunicationImplementation, CommunicationOptions
from replicax.collectives.ring import RingAllReduce


def choose_cross_device_ops(options: CommunicationOptions) -> CrossDeviceOps:
    """Returns the cross-device ops that `options.implementation` stands for.

    Example:
        >>> choose_cross_device_ops(CommunicationOptions(implementation="ring"))
        RingAllReduce()
    """
    if options.implementation is CommunicationImplementation.RING:
        return RingAllReduce()
    if options.implementation is CommunicationImplementation.NCCL:
        return NcclAllReduce()
    return AutomaticAllReduce()
