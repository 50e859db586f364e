"""How a dataset is distributed."""

from __future__ import annotations

import dataclasses

from replicax.checks import checked_int, checked_seconds
from replicax.checks.named import Named, member_of
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.errors import ArgumentError

_REMAINDERS = ("exact", "drop")
_UNEVEN = ("drain", "shortest", "error")


class AutoShardPolicy(Named):
    """How the rows of a dataset are divided among several workers (processes).

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy()
        >>> options = rx.InputOptions(auto_shard_policy=rx.AutoShardPolicy.DATA)
        >>> dataset = strategy.distribute_dataset(np.arange(16), batch_size=8, options=options)
    """

    OFF = "off"
    AUTO = "auto"
    FILE = "file"
    DATA = "data"
    HINT = "hint"

    @classmethod
    def of(cls, value: AutoShardPolicy | str) -> AutoShardPolicy:
        """Returns the policy that `value` is or names, in any case.

        Raises:
            ArgumentError: There is none.
        """
        return member_of(cls, value, "`auto_shard_policy`", ArgumentError)


@called_as("tf.distribute.InputOptions")
@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions(Advised):
    """How a dataset is distributed.

    Attributes:
        prefetch: How many steps a background thread keeps ready on the devices; with 0 each step is prepared when the
            loop takes it, in the loop's thread.
        remainder: What happens to a global batch whose rows cannot be split evenly among the replicas. `"exact"` loses
            nothing: the step runs on as many replicas as divide the rows (7 rows on 8 replicas: on 7; 9 rows: on 3).
            `"drop"` drops the last `rows % num_replicas` rows of that batch, and the whole batch if it has fewer rows
            than there are replicas, so that every step runs on all replicas.
        auto_shard_policy: Which rows a worker reads, where there are several. `"data"`: all workers read the same
            global batches, and each uses its own rows. `"file"`: a worker reads files of its own; for an
            `rx.data.FileSource`, and for `rx.data.Rows` of files. `"hint"`: the dataset is sharded by its own
            `shard(num_shards, index)`, or, if it is a Grain `MapDataset`, by a slice. `"off"`: each worker's dataset is
            its own already. `"auto"`: `"file"` for an `rx.data.FileSource`, and for rows of as many files as workers or
            more; `"data"` for anything else.
        uneven_workers: What happens to a step for which workers that read data of their own do not have rows in
            proportion to their replicas: one has run out, or has a ragged tail. `"drain"`: all rows of all workers
            count once, and the rows of such a step are divided anew. `"shortest"`: the pass ends when the first worker
            has run out. `"error"`: a `BatchError` on every worker, which names the workers and their rows.
        worker_timeout: How long a worker waits for the others to have read their data, in seconds.

    In elastic training (`rx.Elastic`), every worker reads all global batches, whatever the policy, and splits them for
    the workers that there are: so a lost worker's rows are at hand, and no worker waits for another one's data. `"off"`
    is refused, since data of one worker is lost with it. No step is dropped as a whole then: `remainder="drop"` drops
    `rows % num_replicas` rows only of batches that have a row for each replica. `uneven_workers` and `worker_timeout`
    have no meaning.

    Raises:
        ArgumentError: A value is not one of those.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy()
        >>> options = rx.InputOptions(remainder="drop")
        >>> dataset = strategy.distribute_dataset(np.arange(20), batch_size=16, options=options)
        >>> len(list(dataset))
        1
    """

    prefetch: int = 2
    remainder: str = "exact"
    auto_shard_policy: AutoShardPolicy | str = AutoShardPolicy.AUTO
    uneven_workers: str = "drain"
    worker_timeout: float = 600.0

    def __post_init__(self) -> None:
        checked_int("prefetch", self.prefetch)
        _check_one_of("remainder", self.remainder, _REMAINDERS)
        _check_one_of("uneven_workers", self.uneven_workers, _UNEVEN)
        object.__setattr__(self, "auto_shard_policy", AutoShardPolicy.of(self.auto_shard_policy))
        checked_seconds("worker_timeout", self.worker_timeout, infinite=True)


def _check_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(f"`{name}` is one of {allowed}, got {value!r}.")
