"""Objects that each worker has of its own: datasets, iterators and resources, as the coordinator sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax

from replicax.data.sources import can_open
from replicax.errors import ArgumentError
from replicax.parameter_server.actors.messages import SetUp
from replicax.parameter_server.compiling.recording import PytreeSpec
from replicax.parameter_server.scheduling.remote_values import PerWorkerDataset, PerWorkerIterator, PerWorkerValues
from replicax.parameter_server.scheduling.unused import UnusedObjects
from replicax.parameter_server.scheduling.worker_actors import WorkerActors
from replicax.typing import PyTree


class WorkerObjects:
    """Lets each worker make objects, and drop those that nobody refers to any more."""

    def __init__(self, workers: WorkerActors, unused: UnusedObjects):
        self._workers, self._unused = workers, unused
        self._ids = itertools.count()

    def dataset(self, dataset_fn: Callable[[], PyTree] | PyTree) -> PerWorkerDataset:
        """Lets each worker make a dataset, or gives it a copy of one."""
        if not callable(dataset_fn) and not can_open(dataset_fn):
            raise ArgumentError(
                f"`dataset_fn` is a function that returns an iterable of batches, or such an iterable, got "
                f"{dataset_fn!r:.100}. Write it as a generator that yields batches."
            )
        make = dataset_fn if callable(dataset_fn) else lambda: dataset_fn
        dataset = PerWorkerDataset(next(self._ids), self._iterator)
        self._provide(dataset, dataset._id, "dataset", _pickled(make, "dataset_fn"))
        return dataset

    def resource(self, resource_fn: Callable[[], PyTree]) -> PerWorkerValues:
        """Lets each worker make a value."""
        values = PerWorkerValues(next(self._ids), self._fetch_resources)
        self._provide(values, values._id, "resource", _pickled(resource_fn, "resource_fn"))
        return values

    def _iterator(self, dataset: PerWorkerDataset) -> PerWorkerIterator:
        iterator = PerWorkerIterator(next(self._ids), dataset, self.describe)
        self._provide(iterator, iterator._id, "iterator", dataset._id)
        return iterator

    def _provide(self, owner: object, id: int, kind: str, arg: bytes | int) -> None:
        self._workers.add_set_up(SetUp(kind, (id, arg), provides=id))
        self._unused.watch(owner, id)

    def describe(self, kind: str, id: int, worker: int | None = None) -> PytreeSpec:
        """Asks a worker (any by default) for the structure of the next batch of an iterator, or of a resource."""
        treedef, leaves = self._workers.structure(kind, id, worker)
        return PytreeSpec(treedef, tuple(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in leaves))

    def _fetch_resources(self, id: int) -> list[PyTree]:
        described = self.describe("resource", id)
        return [described.rebuild(arrays) for arrays in self._workers.resources(id)]


def _pickled(fn: Callable[[], PyTree], name: str) -> bytes:
    import ray.cloudpickle

    if not callable(fn):
        raise ArgumentError(f"`{name}` is a function without arguments, got {fn!r:.100}.")
    try:
        pickled: bytes = ray.cloudpickle.dumps(fn)
    except Exception as error:
        raise ArgumentError(
            f"`{name}` runs on the workers, but it cannot be pickled: {error}. Let it make what it needs (open files, "
            "datasets, models) inside, instead of using what exists here."
        ) from error
    return pickled
