"""Objects that a worker makes with users' functions: datasets, their iterators, and resources."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np

import replicax.context as context
from replicax.data.batches import host_arrays
from replicax.data.sources import can_open, opened
from replicax.errors import ArgumentError, EndOfDataError
from replicax.parameter_server.actors.messages import ArraySpecs
from replicax.typing import PyTree


class WorkerData:
    """The datasets, iterators and resources of one worker, by their ids."""

    def __init__(self, index: int):
        self._index = index
        self._datasets: dict[int, Iterable[PyTree]] = {}
        self._iterators: dict[int, _PeekableBatches] = {}
        self._resources: dict[int, PyTree] = {}

    def make_dataset(self, number: int, dataset_fn: Callable[[], Iterable[PyTree]]) -> None:
        """Makes a dataset with a user's function."""
        with _dataset_function(self._index):
            made = dataset_fn()
        if not can_open(made):
            raise ArgumentError(
                f"`dataset_fn` returned {made!r:.80} on worker {self._index}, not batches. Let it return an iterable "
                "of batches, or write it as a generator that yields them."
            )
        self._datasets[number] = made

    def make_iterator(self, number: int, dataset: int) -> None:
        """Begins to iterate over a dataset."""
        with _dataset_function(self._index):
            self._iterators[number] = _PeekableBatches(opened(self._datasets[dataset]), self._index)

    def make_resource(self, number: int, resource_fn: Callable[[], PyTree]) -> None:
        """Makes a resource, a pytree of arrays, with a user's function."""
        with context.entered(worker_index=self._index):
            self._resources[number] = host_arrays(resource_fn(), f"The value of `resource_fn` on worker {self._index}")

    def drop(self, number: int) -> None:
        """Drops what the coordinator does not need any more."""
        for kept in (self._datasets, self._iterators, self._resources):
            kept.pop(number, None)

    def structure(self, kind: str, number: int) -> tuple[jax.tree_util.PyTreeDef, ArraySpecs]:
        """Returns the structure of the next batch (or of a resource), and its arrays' shapes and dtypes."""
        tree = self._iterators[number].peek(0) if kind == "batch" else self._resources[number]
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        return treedef, tuple((leaf.shape, leaf.dtype) for leaf in leaves)

    def batch(self, iterator: int, turn: int) -> list[np.ndarray]:
        """Returns the arrays of a batch without consuming it: the next batch for turn 0, its successor for turn 1."""
        return jax.tree_util.tree_leaves(self._iterators[iterator].peek(turn))

    def resource(self, number: int) -> list[np.ndarray]:
        return jax.tree_util.tree_leaves(self._resources[number])

    def keep(self, arrays: Sequence[tuple[int, int]], results: list[np.ndarray]) -> list[np.ndarray]:
        """Stores the last results of a step, the new arrays of resources; returns the other results."""
        count = len(results) - len(arrays)
        for (number, i), array in zip(arrays, results[count:], strict=True):
            leaves, treedef = jax.tree_util.tree_flatten(self._resources[number])
            leaves[i] = array
            self._resources[number] = jax.tree_util.tree_unflatten(treedef, leaves)
        return results[:count]

    def take(self, iterators: dict[int, int]) -> None:
        """Consumes so many batches of each iterator."""
        for iterator, count in iterators.items():
            self._iterators[iterator].drop(count)


@contextlib.contextmanager
def _dataset_function(worker: int) -> Iterator[None]:
    """The context in which users' functions make datasets and batches."""
    with context.entered(worker_index=worker, makes_dataset=True):
        yield


class _PeekableBatches:
    """An iterator whose next batches can be looked at before they are consumed."""

    def __init__(self, iterator: Iterator[PyTree], worker: int):
        self._iterator, self._worker = iterator, worker
        self._seen: list[PyTree] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def peek(self, turn: int) -> PyTree:
        with self._lock:
            while len(self._seen) <= turn:
                if self._failure is not None:
                    raise self._failure  # Asked again, a generator that has failed would only say that it has ended.
                with _dataset_function(self._worker):
                    try:
                        batch = next(self._iterator)
                        self._seen.append(host_arrays(batch, f"A batch of the dataset of worker {self._worker}"))
                    except StopIteration:
                        raise EndOfDataError(
                            f"The dataset of worker {self._worker} has no more batches. Schedule no more steps than it "
                            "has, or let its function return an endless one (repeat it)."
                        ) from None
                    except Exception as error:
                        self._failure = error
                        raise
            return self._seen[turn]

    def drop(self, count: int) -> None:
        with self._lock:
            del self._seen[:count]
