"""Input: from whatever yields batches to values placed on the replicas' devices."""

from replicax.data.channel import Workers
from replicax.data.context import InputContext, ValueContext
from replicax.data.creator import DatasetCreator
from replicax.data.distribute import DistributedDataset, DistributedDatasetFromFunction
from replicax.data.iterator import DistributedIterator
from replicax.data.options import AutoShardPolicy, InputOptions
from replicax.data.units import FileSource

__all__ = [
    "AutoShardPolicy",
    "DatasetCreator",
    "DistributedDataset",
    "DistributedDatasetFromFunction",
    "DistributedIterator",
    "FileSource",
    "InputContext",
    "InputOptions",
    "ValueContext",
    "Workers",
]
