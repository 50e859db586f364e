"""How a dataset is distributed."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from replicax.errors import ArgumentError
from replicax.migration import Advised, called_as
from replicax.named import member_of

_REMAINDERS = ("exact", "drop")
_UNEVEN = ("drain", "shortest", "error")


class AutoShardPolicy(enum.Enum):
    """How the rows of a dataset are shared out among several workers (processes)."""

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
        prefetch: How many steps a background thread keeps ready on the devices; 0 prepares each step when it is
            asked for, in the caller's thread.
        remainder: What happens to a global batch whose rows the replicas cannot share evenly. `"exact"` loses
            nothing: the step runs on as many replicas as divide the rows (7 rows on 8 replicas: on 7; 9 rows: on 3).
            `"drop"` cuts off the last `rows % num_replicas` rows of that batch, and the whole batch if it has fewer
            rows than there are replicas, so that every step runs on all replicas.
        auto_shard_policy: Which rows a worker reads, where there are several. `"data"`: all workers read the same
            global batches, and each keeps its own rows. `"file"`: a worker reads files of its own; for an
            `rx.data.FileSource`. `"hint"`: the dataset is cut by its own `shard(num_shards, index)`, or, if it is a
            Grain `MapDataset`, by a slice. `"off"`: each worker's dataset is its own already. `"auto"`: `"file"` for an
            `rx.data.FileSource`, and `"data"` for anything else.
        uneven_workers: What happens to a step for which the workers that read data of their own do not have rows in
            proportion to their replicas: one has run out, or has a ragged tail. `"drain"`: all rows of all workers
            count once, those of such a step are shared out anew. `"shortest"`: the pass ends when the first worker has
            run out. `"error"`: a `BatchError` on every worker, which names the workers and their rows.
        worker_timeout: How long a worker waits for the others to have read their data, in seconds.

    Raises:
        ArgumentError: A value is not one of those.
    """

    prefetch: int = 2
    remainder: str = "exact"
    auto_shard_policy: AutoShardPolicy | str = AutoShardPolicy.AUTO
    uneven_workers: str = "drain"
    worker_timeout: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.prefetch, bool) or not isinstance(self.prefetch, int) or self.prefetch < 0:
            raise ArgumentError(f"`prefetch` is a number of steps, an int of at least 0, got {self.prefetch!r}.")
        _check_one_of("remainder", self.remainder, _REMAINDERS)
        _check_one_of("uneven_workers", self.uneven_workers, _UNEVEN)
        object.__setattr__(self, "auto_shard_policy", AutoShardPolicy.of(self.auto_shard_policy))
        timeout = self.worker_timeout
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ArgumentError(f"`worker_timeout` is a positive number of seconds, got {timeout!r}.")


def _check_one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ArgumentError(f"`{name}` is one of {allowed}, got {value!r}.")
