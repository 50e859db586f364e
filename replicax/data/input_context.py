"""Functions of a user's that make data: what tells them for which replica or input pipeline, and `DatasetCreator`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from replicax.checks import call, checked_int
from replicax.data.input_options import InputOptions
from replicax.errors import ArgumentError
from replicax.typing import PyTree


@dataclasses.dataclass(frozen=True)
class InputContext:
    """The argument of a `dataset_fn`, with all that it needs to batch and shard its data.

    Attributes:
        num_input_pipelines: Number of pipelines (one per process) that together feed all replicas.
        input_pipeline_id: The id of this pipeline, from 0.
        num_replicas_in_sync: Number of replicas over all pipelines.

    Example:
        >>> context = rx.InputContext(num_replicas_in_sync=8)
        >>> context.get_per_replica_batch_size(64)
        8
    """

    num_input_pipelines: int = 1
    input_pipeline_id: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        pipelines = checked_int("num_input_pipelines", self.num_input_pipelines, least=1)
        _check_index("input_pipeline_id", self.input_pipeline_id, pipelines)
        checked_int("num_replicas_in_sync", self.num_replicas_in_sync, least=1)

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Returns how many of the `global_batch_size` rows of a step go to each replica.

        Raises:
            ArgumentError: The rows cannot be split evenly (the message names the nearest sizes that can).

        Example:
            >>> InputContext(num_replicas_in_sync=4).get_per_replica_batch_size(128)
            32
        """
        replicas = self.num_replicas_in_sync
        per_replica, remainder = divmod(checked_int("global_batch_size", global_batch_size, least=1), replicas)
        if remainder:
            fits = [size * replicas for size in (per_replica, per_replica + 1) if size]
            raise ArgumentError(
                f"A global batch of {global_batch_size} rows cannot be split evenly among {replicas} replicas; "
                f"the nearest sizes that can: {' or '.join(map(str, fits))}."
            )
        return per_replica


@dataclasses.dataclass(frozen=True)
class ValueContext:
    """The argument of a `value_fn`: the replica that it makes a value for.

    Attributes:
        replica_id_in_sync_group: The id of the replica, from 0 to `num_replicas_in_sync - 1`.
        num_replicas_in_sync: Number of replicas.

    Example:
        >>> import numpy as np
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> index = lambda context: np.float32(context.replica_id_in_sync_group)
        >>> values = strategy.distribute_values_from_function(index)
        >>> strategy.local_results(values)
        (Array(0., dtype=float32), Array(1., dtype=float32))
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __post_init__(self) -> None:
        replicas = checked_int("num_replicas_in_sync", self.num_replicas_in_sync, least=1)
        _check_index("replica_id_in_sync_group", self.replica_id_in_sync_group, replicas)


class DatasetCreator:
    """A function that makes the dataset of a worker, as data for `Model.fit`.

    Under a `ParameterServerStrategy` it is pickled and called on each worker, and `fit` needs `steps_per_epoch`. Under
    other strategies it is the same as `strategy.distribute_datasets_from_function(dataset_fn, input_options)`.

    Args:
        dataset_fn: Takes an `InputContext` and returns a dataset of batches: an iterable of `(x, y)` or
            `(x, y, sample_weight)`.
        input_options: How the dataset is distributed by strategies that do so.

    Raises:
        ArgumentError: `dataset_fn` cannot be called, or `input_options` have the wrong type.

    Example:
        >>> creator = DatasetCreator(lambda context: [[context.input_pipeline_id]])
        >>> creator(InputContext(num_input_pipelines=2, input_pipeline_id=1))
        [[1]]
    """

    def __init__(
        self, dataset_fn: Callable[[InputContext], Iterable[PyTree]], input_options: InputOptions | None = None
    ):
        if not callable(dataset_fn):
            raise ArgumentError(f"`dataset_fn` is a function of an rx.InputContext, got {dataset_fn!r:.100}.")
        if input_options is not None and not isinstance(input_options, InputOptions):
            raise ArgumentError(f"`input_options` are rx.InputOptions, got {input_options!r:.100}.")
        self.dataset_fn, self.input_options = dataset_fn, input_options

    def __call__(self, input_context: InputContext) -> Iterable[PyTree]:
        """Returns the dataset of one worker."""
        return call("dataset_fn", self.dataset_fn, (input_context,))


def _check_index(name: str, value: object, count: int) -> None:
    if checked_int(name, value) >= count:
        raise ArgumentError(f"`{name}` counts from 0 and must be below {count}, got {value!r:.100}.")
