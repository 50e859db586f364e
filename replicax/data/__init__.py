"""Input: from whatever yields batches to values placed on the replicas' devices."""

from typing import TYPE_CHECKING, Any

from replicax.data.dataset_creator import DatasetCreator
from replicax.data.distributed_datasets import DistributedDataset, DistributedDatasetFromFunction
from replicax.data.input_context import InputContext, ValueContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.iterator import DistributedIterator
from replicax.data.optional import Optional
from replicax.data.shards import FileSource
from replicax.data.worker_channel import Workers as Workers
from replicax.migration import not_found

__all__ = [
    "AutoShardPolicy",
    "DatasetCreator",
    "DistributedDataset",
    "DistributedDatasetFromFunction",
    "DistributedIterator",
    "FileSource",
    "InputContext",
    "InputOptions",
    "Optional",
    "ValueContext",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        raise not_found(__name__, name)
