"""Distributed datasets: what a training loop iterates over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from jax.sharding import Mesh

from replicax.contracts.group import current_group
from replicax.data.auto_shard import FunctionReading, choose_reading
from replicax.data.batch_split import kept_rows
from replicax.data.dataset_base import DistributedDatasetBase
from replicax.data.file_source import FileSource
from replicax.data.input_context import InputContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.receivers import InputWorkers, Receivers
from replicax.data.rows import Rows
from replicax.data.sources import host_batches
from replicax.errors import ArgumentError
from replicax.typing import PyTree

_log = logging.getLogger(__name__)


class DistributedDataset(DistributedDatasetBase):
    """A dataset of global batches, each split among the replicas; made by `strategy.distribute_dataset`.

    In elastic training a pass goes on when workers are lost or join: with the same global batches, each row once, and
    also if the source is an iterator that cannot begin anew.

    Iterating yields one element per step: the pytree of a batch with a `PerReplica` for each array; with one replica, a
    plain array on its device. It can be iterated as often as its source.

    Args:
        source: What yields the batches; see `replicax.data.sources.host_batches`. Or a `FileSource`, or batches of
            `Rows`.
        num_replicas: Number of replicas of the strategy.
        mesh_for: Returns the mesh of the strategy's first k devices.
        options: Prefetching, what happens to batches that do not divide evenly, and which worker reads which rows; None
            for the defaults.
        batch_size: Rows of a global batch, if `source` is arrays.
        workers: The processes of the strategy; None if this is the only one.
        advice: The subjects of the warnings that the strategy has given already; more are added.
        anew: Where workers come and go: returns the replicas after a change.

    Raises:
        ArgumentError: An argument has the wrong type or value, or is missing.
        BatchError: Arrays were given that disagree in their number of rows, have none, or cannot be split.

    Example:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> dataset = strategy.distribute_dataset(np.arange(6.0), batch_size=4)
        >>> [float(strategy.reduce("sum", strategy.run(jnp.sum, args=(batch,)), axis=None)) for batch in dataset]
        [6.0, 9.0]
    """

    def __init__(
        self,
        source: PyTree,
        *,
        num_replicas: int,
        mesh_for: Callable[[int], Mesh],
        options: InputOptions | None = None,
        batch_size: int | None = None,
        workers: InputWorkers | None = None,
        advice: set[str] | None = None,
        anew: Callable[[], Receivers] | None = None,
    ):
        super().__init__(Receivers.of(num_replicas, mesh_for, workers), options, anew, advice)
        if isinstance(source, DistributedDatasetBase):
            raise ArgumentError("This dataset is distributed already; distribute the dataset that it was made from.")
        if isinstance(source, Rows):
            if batch_size is None:
                raise ArgumentError("The dataset is rows, not batches: give rows.batch(...), or batch_size=... here.")
            source, batch_size = source.batch(batch_size), None
        self._batches = host_batches(source, batch_size)
        self._reading = choose_reading(source, self._batches, batch_size, self._options, self._readers())
        self._keeps_peeked_pass = self._batches.one_shot
        if self._options.auto_shard_policy is AutoShardPolicy.OFF and batch_size is None:
            _warn_of_own_batches(source, self._readers().count, self._seen.advice)

    def __len__(self) -> int:
        """Number of steps of a pass, where the source knows its number of batches."""
        if self._readers().count > 1 and not self._reading.shares_batches:
            raise ArgumentError("The number of steps is unknown: each worker reads data of its own.")
        # Steps that are dropped for lack of rows are subtracted for arrays only; and a Grain dataset with a `filter`
        # counts what the filter removes.
        last_rows = self._batches.last_rows
        if last_rows is None or current_group().may_change:
            return len(self._batches)
        return len(self._batches) - (not kept_rows(last_rows, self._fed.num_replicas, self._options.remainder))

    @property
    def can_continue(self) -> bool:
        return not self._batches.one_shot

    def _check_can_continue(self) -> None:
        if not self.can_continue:
            raise ArgumentError(
                f"The dataset is an iterator ({self._batches.name}), which cannot give its batches again, so its "
                "position cannot be saved. Give something that starts anew: a list, a dataset, or a function that "
                "makes an iterator."
            )


def _warn_of_own_batches(source: PyTree, workers: int, advice: set[str]) -> None:
    """Warns once for each strategy: batches made for one worker, if taken for global ones, give too many steps."""
    about = "batches of a worker's own"
    if workers == 1 or isinstance(source, FileSource) or about in advice:
        return
    advice.add(about)
    _log.warning(
        "auto_shard_policy='off': this worker's batches are taken for global ones, so a step takes 1/%d of a batch "
        "from each of the %d workers, and there are %d steps for each batch. If your batches are those of one worker, "
        "make them %d times as large, or give those of one replica to distribute_datasets_from_function.",
        workers, workers, workers, workers,
    )  # fmt: skip


class DistributedDatasetFromFunction(DistributedDatasetBase):
    """A dataset of per-replica batches; made by `strategy.distribute_datasets_from_function`.

    Each pass calls `dataset_fn` once on each worker. Consecutive batches of what it returns go to consecutive replicas
    of the worker: a step takes one batch for each. `replicax.data.batch_split.split_group` says how the end of the data
    is split; over several workers `rx.InputOptions.uneven_workers` does.

    In elastic training each worker calls `dataset_fn` for one pipeline that has all rows,
    `InputContext(1, 0, num_replicas)`, and a step takes `num_replicas` consecutive batches. A pass that has begun goes
    on with the batches that it began with, and with as many rows in a step, however many replicas share them later. So
    that the next pass has steps of as many rows, too, `dataset_fn` asks for the size of its batches:
    `context.get_per_replica_batch_size(global_batch_size)`.

    Args:
        dataset_fn: Takes an `InputContext` and returns batches for one replica each: anything that
            `replicax.data.sources.host_batches` takes without `batch_size`.
        num_replicas: Number of replicas of the strategy.
        mesh_for: Returns the mesh of the strategy's first k devices.
        options: Prefetching and what happens to the end of the data; None for the defaults.
        workers: The processes of the strategy; None if this is the only one.
        anew: Where workers come and go: returns the replicas after a change.

    Raises:
        ElasticError: Workers come and go, and each has data of its own.
        ArgumentError: `dataset_fn` is not callable, or `options` are not `InputOptions`.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> def dataset_fn(context):
        ...     size = context.get_per_replica_batch_size(4)
        ...     return [np.full(size, i) for i in range(6)]
        >>> dataset = strategy.distribute_datasets_from_function(dataset_fn)
        >>> len(list(dataset))
        3
    """

    _keeps_peeked_pass = True  # So that `dataset_fn` runs once per pass, as promised.

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Iterable[PyTree]],
        *,
        num_replicas: int,
        mesh_for: Callable[[int], Mesh],
        options: InputOptions | None = None,
        workers: InputWorkers | None = None,
        anew: Callable[[], Receivers] | None = None,
    ):
        super().__init__(Receivers.of(num_replicas, mesh_for, workers), options, anew)
        if not callable(dataset_fn):
            raise ArgumentError(
                f"`dataset_fn` is a function of an rx.InputContext that returns a dataset, got {dataset_fn!r:.80}."
            )
        self._reading = FunctionReading(dataset_fn, self._readers(), self._options)
