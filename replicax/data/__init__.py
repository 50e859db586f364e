"""Input: from whatever yields batches to values placed on the replicas' devices."""

from replicax.data.context import InputContext, ValueContext
from replicax.data.distribute import DistributedDataset, DistributedDatasetFromFunction
from replicax.data.iterator import DistributedIterator
from replicax.data.options import InputOptions

__all__ = [
    "DistributedDataset",
    "DistributedDatasetFromFunction",
    "DistributedIterator",
    "InputContext",
    "InputOptions",
    "ValueContext",
]
