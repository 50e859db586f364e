"""What a worker makes by users' functions: datasets, their iterators, and other values of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import replicax.context as context
from replicax.errors import EndOfDataError
from replicax.parameter_server.actors.current import on_worker


class WorkerData:
    """The datasets and resources of one worker, by number.

    Args:
        index: Number of the worker.
    """

    def __init__(self, index: int):
        self._index = index
        self._datasets: dict[int, Any] = {}
        self._iterators: dict[int, _Batches] = {}
        self._resources: dict[int, Any] = {}

    def make_dataset(self, number: int, dataset_fn: Callable[[], Any]) -> None:
        """Makes a dataset by a user's function."""
        with _dataset_function(self._index):
            self._datasets[number] = dataset_fn()

    def make_iterator(self, number: int, dataset: int) -> None:
        """Begins to iterate over a dataset."""
        with _dataset_function(self._index):
            self._iterators[number] = _Batches(iter(self._datasets[dataset]), self._index)

    def make_resource(self, number: int, resource_fn: Callable[[], Any]) -> None:
        """Makes a value by a user's function: a nest of arrays."""
        with on_worker(self._index):
            self._resources[number] = jax.tree_util.tree_map(np.asarray, resource_fn())

    def drop(self, number: int) -> None:
        """Forgets what the coordinator has no use for any more."""
        for held in (self._datasets, self._iterators, self._resources):
            held.pop(number, None)

    def structure(self, kind: str, number: int) -> tuple[Any, tuple[tuple[tuple[int, ...], Any], ...]]:
        """Returns the structure of the next batch (or of a resource), and its arrays' shapes and dtypes."""
        nest = self._iterators[number].peek(0) if kind == "batch" else self._resources[number]
        leaves, treedef = jax.tree_util.tree_flatten(nest)
        return treedef, tuple((np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves)

    def batch(self, iterator: int, turn: int) -> list[np.ndarray]:
        """Returns the arrays of a batch that has not been taken: the next one for turn 0, the one after it for 1."""
        return [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(self._iterators[iterator].peek(turn))]

    def resource(self, number: int) -> list[np.ndarray]:
        """Returns the arrays of a resource."""
        return jax.tree_util.tree_leaves(self._resources[number])

    def keep(self, arrays: Sequence[tuple[int, int]], results: list[np.ndarray]) -> list[np.ndarray]:
        """Takes the new arrays of resources, the last ones of a step's results; returns the other results."""
        count = len(results) - len(arrays)
        for (number, i), array in zip(arrays, results[count:], strict=True):
            leaves, treedef = jax.tree_util.tree_flatten(self._resources[number])
            leaves[i] = array
            self._resources[number] = jax.tree_util.tree_unflatten(treedef, leaves)
        return results[:count]

    def take(self, iterators: dict[int, int]) -> None:
        """Goes on by so many batches in each iterator."""
        for iterator, count in iterators.items():
            self._iterators[iterator].drop(count)


@contextlib.contextmanager
def _dataset_function(worker: int) -> Iterator[None]:
    """Surrounds users' functions that make datasets, and batches."""
    with on_worker(worker), context.entered(makes_dataset=True):
        yield


class _Batches:
    """An iterator whose next batches can be looked at before they are taken."""

    def __init__(self, iterator: Iterator[Any], worker: int):
        self._iterator, self._worker = iterator, worker
        self._seen: list[Any] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def peek(self, turn: int) -> Any:
        with self._lock:
            while len(self._seen) <= turn:
                if self._failure is not None:
                    raise self._failure  # Asked again, a generator that has failed would only say that it has ended.
                with _dataset_function(self._worker):
                    try:
                        self._seen.append(next(self._iterator))
                    except StopIteration:
                        raise EndOfDataError(
                            f"The dataset of worker {self._worker} has no more batches. Schedule no more steps than it "
                            "has, or let its function return one without end (repeat it)."
                        ) from None
                    except Exception as error:
                        self._failure = error
                        raise
            return self._seen[turn]

    def drop(self, count: int) -> None:
        with self._lock:
            del self._seen[:count]
