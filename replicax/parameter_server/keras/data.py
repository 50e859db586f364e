"""The data of `Model.fit` under a `ParameterServerStrategy`.

Workers read the batches to train on. Arrays, and datasets whose batches have an index (a `PyDataset`), are sent to all
workers, which take their batches in turn; with `max_staleness=0` the coordinator reads these, in Keras's order. A
`DatasetCreator`, or a function without arguments, is called on each worker. Any other dataset is copied to each worker.
The coordinator reads the batches to evaluate or predict, and sends them to workers.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

import jax
import numpy as np

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.data import DatasetCreator, InputContext
from replicax.data.batches import count_rows
from replicax.data.sources import ArrayBatches, HostBatches, host_batches
from replicax.errors import ArgumentError, BatchError
from replicax.parameter_server.actors.workers_dataset import WorkersDataset
from replicax.typing import PyTree

_DEFAULT_BATCH_SIZE = 32  # as in Keras


class DataArguments(NamedTuple):
    """The arguments of `fit` or `evaluate` that are about data, as Keras takes them."""

    x: PyTree
    y: PyTree = None
    sample_weight: PyTree = None
    batch_size: int | None = None
    steps: int | None = None
    class_weight: dict[int, float] | None = None


class TrainingData(NamedTuple):
    """Data to train on."""

    dataset_fn: Callable[[], Iterable[PyTree]]  # makes a worker's endless dataset; can be pickled
    steps: int  # of an epoch


def for_workers(given: DataArguments, shuffle: bool | str, workers: int) -> TrainingData:
    """Returns the data that workers train on."""
    if isinstance(given.x, WorkersDataset) and given.x.given is not None:
        given = given._replace(x=given.x.given)
    seed = np.random.randint(2**31) if shuffle else None
    if are_arrays(given):
        arrays = array_batches(given)
        in_turn = RoundRobinArrays(arrays.arrays, arrays.size, workers, seed, shuffle == "batch")
        return TrainingData(in_turn, given.steps or len(arrays))
    _check_only_x(given)
    if callable(given.x):
        if given.steps is None:
            raise ArgumentError(
                "Each worker makes its own dataset, so the end of an epoch is unknown: "
                f"`steps_per_epoch` has to be given with a {type(given.x).__name__}."
            )
        return TrainingData(RepeatedDataset(given.x, workers), given.steps)
    if isinstance(given.x, Iterator):
        raise ArgumentError(
            f"Each worker needs data of its own, but a {type(given.x).__name__} can be read only once, by the "
            "coordinator. Give a function that returns one, or rx.data.DatasetCreator."
        )
    if hasattr(type(given.x), "__getitem__") and hasattr(type(given.x), "__len__"):
        return TrainingData(RoundRobinSequence(given.x, workers, seed), given.steps or len(given.x))
    if given.steps is None and not hasattr(type(given.x), "__len__"):
        raise ArgumentError(
            f"The number of batches of a {type(given.x).__name__} is unknown: give `steps_per_epoch` as well."
        )
    return TrainingData(RepeatedDataset(given.x, workers), given.steps or len(given.x))


def for_coordinator(given: DataArguments) -> HostBatches:
    """Returns the batches that the coordinator reads and sends to workers, so that each row is evaluated once."""
    if are_arrays(given):
        return array_batches(given)
    _check_only_x(given)
    if isinstance(given.x, DatasetCreator):
        return host_batches(given.x(InputContext()))
    return host_batches(given.x)


def are_arrays(given: DataArguments) -> bool:
    """Returns whether the data are arrays (tables, tensors, pytrees of them), not something that yields batches."""
    return keras_door.are_arrays((given.x, given.y, given.sample_weight))


def array_batches(given: DataArguments) -> ArrayBatches:
    """Returns the batches of arrays, which Keras has checked and converted to NumPy's."""
    rows = max((len(leaf) for leaf in jax.tree_util.tree_leaves(given.x)), default=0)
    if not rows:
        raise BatchError("The data has no rows: there is no batch at all.")
    batch = keras_door.as_one_batch(given.x, given.y, given.sample_weight, given.class_weight, rows)
    arrays = jax.tree_util.tree_map(np.asarray, batch)
    by_steps = math.ceil(rows / given.steps) if given.steps else _DEFAULT_BATCH_SIZE
    return ArrayBatches(arrays, given.batch_size or by_steps)


def _check_only_x(given: DataArguments) -> None:
    beside = {name: getattr(given, name) for name in ("y", "sample_weight", "batch_size", "class_weight")}
    for name, value in beside.items():
        if value is not None:
            raise ArgumentError(
                f"`{name}` is for arrays. A {type(given.x).__name__} yields complete batches, (x, y) or (x, y, "
                f"sample_weight): leave `{name}` out."
            )


class RoundRobin(abc.ABC):
    """An endless stream of batches that workers take in turn: of `n` workers each gets every `n`-th batch."""

    def __init__(self, workers: int, seed: int | None):
        self._workers, self._seed = workers, seed

    def __call__(self) -> RoundRobin:
        """Returns itself; it was made on the coordinator."""
        return self

    def __iter__(self) -> Iterator[PyTree]:
        return self._every(self._workers, context.current().worker_index or 0)

    def in_order(self) -> Iterator[PyTree]:
        """Returns the whole stream."""
        return self._every(1, 0)

    def _every(self, workers: int, index: int) -> Iterator[PyTree]:
        count, last, order = self._count(), -1, np.empty(0, int)
        for number in itertools.count(index, workers):
            this_pass, batch = divmod(number, count)
            if this_pass != last:
                # All workers shuffle alike: those of equal speed together take every batch once in each pass.
                random = None if self._seed is None else np.random.default_rng((self._seed, this_pass))
                last, order = this_pass, self._order(random)
            yield self._batch(order, batch)

    @abc.abstractmethod
    def _count(self) -> int:
        """Returns the number of batches of a pass."""

    @abc.abstractmethod
    def _order(self, random: np.random.Generator | None) -> np.ndarray:
        """Returns the order of the rows or batches of a pass; without `random` they are not shuffled."""

    @abc.abstractmethod
    def _batch(self, order: np.ndarray, number: int) -> PyTree:
        """Returns a batch of a pass."""


class RoundRobinArrays(RoundRobin):
    """Batches of arrays."""

    def __init__(self, arrays: PyTree, size: int, workers: int, seed: int | None, by_batch: bool = False):
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
        full = rows - rows % self._size
        batches = random.permutation(np.arange(full).reshape(-1, self._size))
        return np.concatenate([batches.ravel(), np.arange(full, rows)])

    def _batch(self, order: np.ndarray, number: int) -> PyTree:
        rows = order[number * self._size : (number + 1) * self._size]
        return jax.tree_util.tree_map(lambda array: array[rows], self._arrays)


class BatchSequence(Protocol):
    """Batches by their index, like a `keras.utils.PyDataset`."""

    def __len__(self) -> int:
        """The number of batches."""

    def __getitem__(self, index: int, /) -> PyTree:
        """A batch."""


class RoundRobinSequence(RoundRobin):
    """Batches that have an index each."""

    def __init__(self, source: BatchSequence, workers: int, seed: int | None):
        super().__init__(workers, seed)
        self._source = source

    def _count(self) -> int:
        return _checked_count(len(self._source))

    def _order(self, random: np.random.Generator | None) -> np.ndarray:
        count = len(self._source)
        return np.arange(count) if random is None else random.permutation(count)

    def _batch(self, order: np.ndarray, number: int) -> PyTree:
        return next(iter(host_batches([self._source[int(order[number])]])))


class RepeatedDataset:
    """A worker's own dataset, restarted whenever it ends."""

    def __init__(self, source: PyTree, workers: int):
        self._source, self._workers = source, workers

    def __call__(self) -> RepeatedDataset:
        """Returns itself; the dataset is made when it is iterated over."""
        return self

    def __iter__(self) -> Iterator[PyTree]:
        index, dataset = context.current().worker_index or 0, None
        while True:
            if dataset is None or isinstance(dataset, Iterator):
                dataset = self._open(index)
            batches = 0
            for batch in host_batches(dataset):
                yield batch
                batches += 1
            _checked_count(batches)

    def _open(self, index: int) -> PyTree:
        if isinstance(self._source, DatasetCreator):
            return self._source(InputContext(self._workers, index))
        return self._source() if callable(self._source) else self._source


def _checked_count(batches: int) -> int:
    if not batches:
        raise BatchError(f"The dataset of worker {context.current().worker_index} yielded no batch at all.")
    return batches
