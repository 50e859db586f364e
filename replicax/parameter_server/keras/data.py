"""The data of `Model.fit` under a `ParameterServerStrategy`: what workers read, and what the coordinator sends them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

import replicax.compat.keras as keras_door
from replicax.data import DatasetCreator, InputContext
from replicax.data.batches import count_rows
from replicax.data.sources import ArrayBatches, HostBatches, host_batches
from replicax.errors import ArgumentError, BatchError
from replicax.parameter_server.actors.current import worker_index
from replicax.parameter_server.actors.workers_dataset import WorkersDataset

_DEFAULT_BATCH_SIZE = 32  # as in Keras


class DataArguments(NamedTuple):
    """The arguments of `fit` or `evaluate` that are about data, as Keras takes them."""

    x: Any
    y: Any = None
    sample_weight: Any = None
    batch_size: int | None = None
    steps: int | None = None
    class_weight: dict[int, float] | None = None


class TrainingData(NamedTuple):
    """Data to train on.

    Attributes:
        dataset_fn: Makes a worker's endless dataset; it can be pickled.
        steps: Steps of an epoch.
    """

    dataset_fn: Callable[[], Any]
    steps: int


def for_workers(given: DataArguments, shuffle: bool | str, workers: int) -> TrainingData:
    """Returns what workers train on.

    Raises:
        ArgumentError: The steps of an epoch are unknown, or arguments do not go together.
        BatchError: There are no rows.
    """
    if isinstance(given.x, WorkersDataset) and given.x.given is not None:
        given = given._replace(x=given.x.given)
    seed = np.random.randint(2**31) if shuffle else None
    if are_arrays(given):
        arrays = array_batches(given)
        dealt = RoundRobinArrays(arrays.arrays, arrays.size, workers, seed, shuffle == "batch")
        return TrainingData(dealt, given.steps or len(arrays))
    _check_only_x(given)
    if callable(given.x):
        if given.steps is None:
            raise ArgumentError(
                "Each worker makes its own dataset, so that nobody knows where an epoch ends: `steps_per_epoch` has to "
                f"be given with a {type(given.x).__name__}."
            )
        return TrainingData(RepeatedDataset(given.x, workers), given.steps)
    if isinstance(given.x, Iterator):
        raise ArgumentError(
            f"Each worker needs data of its own, but a {type(given.x).__name__} can be read once, and here only. Give "
            "a function that returns one, or rx.data.DatasetCreator."
        )
    if hasattr(type(given.x), "__getitem__") and hasattr(type(given.x), "__len__"):
        return TrainingData(RoundRobinSequence(given.x, workers, seed), given.steps or len(given.x))
    if given.steps is None and not hasattr(type(given.x), "__len__"):
        raise ArgumentError(
            f"The number of batches of a {type(given.x).__name__} is unknown: give `steps_per_epoch` as well."
        )
    return TrainingData(RepeatedDataset(given.x, workers), given.steps or len(given.x))


def for_coordinator(given: DataArguments) -> HostBatches:
    """Returns the batches that the coordinator reads and sends to workers: to evaluate each row once."""
    if are_arrays(given):
        return array_batches(given)
    _check_only_x(given)
    if isinstance(given.x, DatasetCreator):
        return host_batches(given.x(InputContext()))
    return host_batches(given.x)


def are_arrays(given: DataArguments) -> bool:
    """Returns whether the data are arrays (tables, tensors, nests of them), not something that yields batches."""
    return keras_door.are_arrays((given.x, given.y, given.sample_weight))


def array_batches(given: DataArguments) -> ArrayBatches:
    """Returns the batches of arrays, made NumPy's and checked by Keras.

    Raises:
        BatchError: There are no rows.
    """
    rows = max((len(leaf) for leaf in jax.tree_util.tree_leaves(given.x)), default=0)
    if not rows:
        raise BatchError("The data has no rows: there is no batch at all.")
    whole = keras_door.as_one_batch(given.x, given.y, given.sample_weight, given.class_weight, rows)
    arrays = jax.tree_util.tree_map(np.asarray, whole)
    by_steps = math.ceil(rows / given.steps) if given.steps else _DEFAULT_BATCH_SIZE
    return ArrayBatches(arrays, given.batch_size or by_steps)


def _check_only_x(given: DataArguments) -> None:
    beside = {name: getattr(given, name) for name in ("y", "sample_weight", "batch_size", "class_weight")}
    for name, value in beside.items():
        if value is not None:
            raise ArgumentError(
                f"`{name}` is for arrays. A {type(given.x).__name__} yields whole batches, (x, y) or (x, y, "
                f"sample_weight): leave `{name}` out."
            )


class RoundRobin:
    """An endless stream of batches, dealt to the workers in turn: each gets every so many-th.

    All of them shuffle alike, so that workers of equal speed together take every batch once in each pass.

    Args:
        workers: How many workers.
        seed: For shuffling; None leaves batches in order.
    """

    def __init__(self, workers: int, seed: int | None):
        self._workers, self._seed = workers, seed

    def __call__(self) -> RoundRobin:
        """Returns itself: it is made on the coordinator."""
        return self

    def __iter__(self) -> Iterator[Any]:
        return self._every(self._workers, worker_index() or 0)

    def in_order(self) -> Iterator[Any]:
        """Returns the whole stream."""
        return self._every(1, 0)

    def _every(self, workers: int, index: int) -> Iterator[Any]:
        count, last, order = self._count(), -1, None
        for number in itertools.count(index, workers):
            this_pass, batch = divmod(number, count)
            if this_pass != last:
                random = None if self._seed is None else np.random.default_rng((self._seed, this_pass))
                last, order = this_pass, self._order(random)
            yield self._batch(order, batch)

    def _count(self) -> int:
        raise NotImplementedError

    def _order(self, random: np.random.Generator | None) -> Any:
        """Returns what tells the batches of a pass; without `random` they are in order."""
        raise NotImplementedError

    def _batch(self, order: Any, number: int) -> Any:
        raise NotImplementedError


class RoundRobinArrays(RoundRobin):
    """Batches of arrays.

    Args:
        arrays: A nest of arrays.
        size: Rows of a batch; the last of a pass may have fewer.
        workers: How many workers.
        seed: For shuffling; None leaves rows in order.
        by_batch: Whether to shuffle batches instead of rows.
    """

    def __init__(self, arrays: Any, size: int, workers: int, seed: int | None, by_batch: bool = False):
        super().__init__(workers, seed)
        self._arrays, self._size, self._by_batch = arrays, size, by_batch

    def _count(self) -> int:
        return -(-count_rows(self._arrays) // self._size)

    def _order(self, random: np.random.Generator | None) -> np.ndarray:
        rows = count_rows(self._arrays)
        if random is None:
            return np.arange(rows)
        if not self._by_batch:
            return random.permutation(rows)
        whole = rows - rows % self._size
        batches = random.permutation(np.arange(whole).reshape(-1, self._size))
        return np.concatenate([batches.ravel(), np.arange(whole, rows)])

    def _batch(self, order: np.ndarray, number: int) -> Any:
        rows = order[number * self._size : (number + 1) * self._size]
        return jax.tree_util.tree_map(lambda array: array[rows], self._arrays)


class RoundRobinSequence(RoundRobin):
    """Batches that have numbers.

    Args:
        source: Has `__len__` and `__getitem__`, like a `keras.utils.PyDataset`.
        workers: How many workers.
        seed: For shuffling; None leaves batches in order.
    """

    def __init__(self, source: Any, workers: int, seed: int | None):
        super().__init__(workers, seed)
        self._source = source

    def _count(self) -> int:
        return _checked_count(len(self._source))

    def _order(self, random: np.random.Generator | None) -> np.ndarray:
        count = len(self._source)
        return np.arange(count) if random is None else random.permutation(count)

    def _batch(self, order: np.ndarray, number: int) -> Any:
        return next(iter(host_batches([self._source[int(order[number])]])))


class RepeatedDataset:
    """A worker's own dataset, begun anew whenever it ends.

    Args:
        source: A dataset, a function that returns one, or a `DatasetCreator`.
        workers: How many workers.
    """

    def __init__(self, source: Any, workers: int):
        self._source, self._workers = source, workers

    def __call__(self) -> RepeatedDataset:
        """Returns itself: the dataset is made when it is iterated over."""
        return self

    def __iter__(self) -> Iterator[Any]:
        index, dataset = worker_index() or 0, None
        while True:
            if dataset is None or isinstance(dataset, Iterator):
                dataset = self._made(index)
            batches = 0
            for batch in host_batches(dataset):
                yield batch
                batches += 1
            _checked_count(batches)

    def _made(self, index: int) -> Any:
        if isinstance(self._source, DatasetCreator):
            return self._source(InputContext(self._workers, index))
        return self._source() if callable(self._source) else self._source


def _checked_count(batches: int) -> int:
    if not batches:
        raise BatchError(f"The dataset of worker {worker_index()} yielded no batch at all.")
    return batches
