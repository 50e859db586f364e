"""Input: from whatever yields batches to values on the devices of the replicas.

One worked example, a batch of 10 rows on 4 replicas of one process, walks through the files of this folder::

    dataset = strategy.distribute_dataset(np.arange(10.0), batch_size=10)
    for batch in dataset:
        strategy.run(step, args=(batch,))

1. `distributed_datasets.py`: `strategy.distribute_dataset` makes a `DistributedDataset`. Its base class
   (`dataset_base.py`) knows the options (`input_options.py`), opens passes, and counts where the loop is
   (`position.py`).
2. `sources.py`: what the user gave becomes `HostBatches`, an iterable of host batches. Each batch is checked in
   `batches.py`: all leaves are arrays and have 10 rows.
3. `auto_shard.py`: the `auto_shard_policy` decides how a worker reads. Here, and by default, all workers read the same
   batches (`SharedReading`). Otherwise a worker reads shards of its own (`shards.py`), such as files
   (`file_source.py`), and makes batches of the right size of them (`rebatching.py`).
4. `input_steps.py`: `StepByStep` makes an `InputStep` of the batch: the rows that this worker's replicas get.
   `batch_split.py` splits the 10 rows. 4 replicas cannot share them evenly, so 2 replicas get 5 rows each, an array of
   shape `(2, 5)`. With `remainder="drop"` all 4 replicas would get 2 rows each, and the last 2 rows would be dropped.
5. `batch_placement.py`: the part of replica i goes to device i. The result is one `PerReplica` for each leaf.
6. `passes.py`: a `Pass` is steps 2 to 5, for one batch after the other. In `prefetch.py` a background thread does them
   for the next batches while the devices compute.
7. `iterator.py`: the loop takes the `PerReplica`, and the position moves on by 10 rows. `optional_batch.py` is the same
   without `StopIteration`.

With several workers, step 4 needs the others. `step_agreement.py` lets all workers learn what each of them has for the
coming steps, in messages through host memory (`worker_channel.py`). Where workers do not have rows in proportion to
their replicas, they send each other rows (`row_exchange.py`).

Where workers come and go, step 4 needs nobody: each worker reads all of each batch (`whole_batches.py`), splits it for
the replicas of the present world (`receivers.py`), and does so again when the world changes
(`replicax/group/renewal.py`).

The rest: `input_context.py` is for datasets that a function of the user's makes on each worker, and `shard_report.py`
compares what the workers read.
"""

from typing import TYPE_CHECKING

from replicax.contracts.advice import not_found
from replicax.data.distributed_datasets import DistributedDataset, DistributedDatasetFromFunction
from replicax.data.file_source import FileSource
from replicax.data.input_context import DatasetCreator, InputContext, ValueContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.iterator import DistributedIterator
from replicax.data.optional_batch import Optional
from replicax.data.receivers import InputWorkers as InputWorkers
from replicax.data.sources import ArraySource

__all__ = [
    "ArraySource",
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

    def __getattr__(name: str) -> object:
        raise not_found(__name__, name)

    def __dir__() -> list[str]:
        return sorted(__all__)
