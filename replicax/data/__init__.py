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

Rows of files, and of any source of which rows can be read one by one, come another way, `rows.py`. `row_plans.py` says
which rows a worker reads, in which order, after a position; `row_pass.py` reads, maps and batches them in threads, and
`row_reading.py` gives the batches to step 4. `row_groups.py` pads and packs rows, and `row_process.py` maps them in
processes. `readers/` has a file for each format.

The rest: `input_context.py` is for datasets that a function of the user's makes on each worker, and `shard_report.py`
compares what the workers read.
"""

import importlib
from typing import TYPE_CHECKING

from replicax.contracts.advice import not_found
from replicax.data.distributed_datasets import DistributedDataset, DistributedDatasetFromFunction
from replicax.data.file_source import FileSource
from replicax.data.input_context import DatasetCreator, InputContext, ValueContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.iterator import DistributedIterator
from replicax.data.optional_batch import Optional
from replicax.data.receivers import InputWorkers as InputWorkers
from replicax.data.rows import RowBatches, Rows
from replicax.data.sources import ArraySource

__all__ = [
    "ArraySource",
    "AutoShardPolicy",
    "Cache",
    "DatasetCreator",
    "DistributedDataset",
    "DistributedDatasetFromFunction",
    "DistributedIterator",
    "FileSource",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "InputContext",
    "InputOptions",
    "Optional",
    "RowBatches",
    "Rows",
    "ValueContext",
    "VarLenFeature",
    "decode_image",
    "from_hugging_face",
    "parse_example",
    "parse_sequence_example",
    "read_array_record",
    "read_csv",
    "read_images",
    "read_json_lines",
    "read_numpy",
    "read_parquet",
    "read_texts",
    "read_tfrecord",
    "read_tokens",
    "read_webdataset",
    "write_tfrecord",
]

# Loaded when they are first asked for: most scripts need one of them, or none.
_READERS = {
    "Cache": "files",
    "FixedLenFeature": "examples",
    "FixedLenSequenceFeature": "examples",
    "VarLenFeature": "examples",
    "decode_image": "images",
    "from_hugging_face": "hugging_face",
    "parse_example": "examples",
    "parse_sequence_example": "examples",
    "read_array_record": "array_record",
    "read_csv": "tables",
    "read_images": "images",
    "read_json_lines": "tables",
    "read_numpy": "arrays",
    "read_parquet": "tables",
    "read_texts": "images",
    "read_tfrecord": "tfrecord",
    "read_tokens": "arrays",
    "read_webdataset": "webdataset",
    "write_tfrecord": "tfrecord",
}

if TYPE_CHECKING:
    from replicax.data.readers.array_record import read_array_record
    from replicax.data.readers.arrays import read_numpy, read_tokens
    from replicax.data.readers.examples import (
        FixedLenFeature,
        FixedLenSequenceFeature,
        VarLenFeature,
        parse_example,
        parse_sequence_example,
    )
    from replicax.data.readers.files import Cache
    from replicax.data.readers.hugging_face import from_hugging_face
    from replicax.data.readers.images import decode_image, read_images, read_texts
    from replicax.data.readers.tables import read_csv, read_json_lines, read_parquet
    from replicax.data.readers.tfrecord import read_tfrecord, write_tfrecord
    from replicax.data.readers.webdataset import read_webdataset
else:  # For a type checker every name would exist.

    def __getattr__(name: str) -> object:
        if name in _READERS:
            module = importlib.import_module(f"replicax.data.readers.{_READERS[name]}")
            value = globals()[name] = getattr(module, name)
            return value
        raise not_found(__name__, name)

    def __dir__() -> list[str]:
        return sorted(__all__)
