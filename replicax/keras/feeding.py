"""Feeding: how the global batches of `Model.fit` get onto the devices of a strategy."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core
from jax.sharding import Sharding

from replicax.compat.keras import data_adapter_class
from replicax.contracts.strategy import StrategyBase
from replicax.data import (
    DatasetCreator,
    DistributedDataset,
    DistributedDatasetFromFunction,
    FileSource,
    InputOptions,
    RowBatches,
)
from replicax.data.batch_placement import owned_copy
from replicax.errors import BatchError, StrategyMismatchError
from replicax.program.ir.jaxprs import aval_of
from replicax.runtime.transfer import put, spans_processes
from replicax.typing import Leaf, PyTree
from replicax.values import MASKED, PerReplica, is_per_replica


class Feed:
    """Places batches: cut on the way to the devices if their rows divide by the number of replicas, else whole."""

    def __init__(self, replicas: int, cut: Sharding, whole: Sharding, to_program: bool = False):
        self._replicas, self._cut, self._whole = replicas, cut, whole
        self._spans_processes = spans_processes(whole)
        self._is_alone = len(cut.device_set) == replicas  # A replica is one device.
        # On one device a compiled program takes host arrays as they are, and puts them there itself, in a fraction of
        # the time of `jax.device_put`.
        self._leaves_host_arrays = to_program and len(whole.device_set) == 1 and not self._spans_processes

    @classmethod
    def over(cls, strategy: StrategyBase, to_program: bool = False) -> Feed:
        """Returns a feed that cuts batches over the axis `"replica"` of a strategy's mesh."""
        cut, whole = (strategy.placement.sharding(stacked) for stacked in (True, False))
        return cls(strategy.num_replicas_in_sync, cut, whole, to_program)

    @classmethod
    def at(cls, home: Sharding) -> Feed:
        """Returns a feed that puts whole batches in one place."""
        return cls(1, home, home)

    def placed(self, data: Any) -> Any:
        """Returns the batch `data`, a pytree of arrays with rows first (or None), as the step takes it."""
        leaves, treedef = jax.tree_util.tree_flatten(data, is_leaf=is_per_replica)
        shardings = []
        for index, leaf in enumerate(leaves):
            array = leaves[index] = _rows(leaf) if isinstance(leaf, PerReplica) else leaf
            has_rows = np.ndim(array) > 0
            if has_rows and array.shape[0] == 0:
                shapes = [np.shape(_rows(each)) for each in leaves]
                raise BatchError(
                    f"A batch has no rows: its arrays have shapes {shapes}. Each step needs at least one row."
                )
            shardings.append(self._cut if has_rows and array.shape[0] % self._replicas == 0 else self._whole)
            if isinstance(array, np.ma.MaskedArray):
                raise BatchError(f"A batch has {MASKED}")
            if isinstance(array, np.ndarray):
                # A source may refill its memory for the next batch while this one is still on its way.
                leaves[index] = owned_copy(array)
        return jax.tree_util.tree_unflatten(treedef, self._put(leaves, shardings))

    def _put(self, arrays: list[Any], shardings: list[Sharding]) -> list[Any]:
        if self._leaves_host_arrays and all(isinstance(array, np.ndarray) for array in arrays):
            return arrays
        if self._spans_processes:
            return [put(array, sharding) for array, sharding in zip(arrays, shardings, strict=True)]
        return jax.device_put(arrays, shardings)

    def constrained(self, data: PyTree) -> PyTree:
        """Returns a batch that is being traced, split along its rows."""
        # XLA can cut any number of rows: nothing is lost, and user code sees no padding. Where several devices make a
        # replica, other batches stay whole, and each device computes all of them: there XLA's gradient of a look-up
        # (`jnp.take`) counts padded rows.

        def split(leaf: Leaf) -> Leaf:
            if not isinstance(leaf, jax.core.Tracer) or leaf.ndim == 0 or leaf.shape[0] < self._replicas:
                return leaf
            if leaf.shape[0] % self._replicas and not self._is_alone:
                return leaf
            return jax.lax.with_sharding_constraint(leaf, self._cut)

        return jax.tree_util.tree_map(split, data)

    def padded_rows(self, data: PyTree) -> set[int]:
        """Returns the numbers of rows of the arrays that XLA pads in a batch that is `constrained`."""
        rows = {leaf.shape[0] for leaf in jax.tree_util.tree_leaves(data) if np.ndim(leaf)}
        return {each for each in rows if self._is_alone and each > self._replicas and each % self._replicas}


def is_wrong_where_padded(equation: jex_core.JaxprEqn, rows: set[int]) -> bool:
    """Returns whether XLA's partitioner may get an operation wrong where it pads arrays of so many rows."""
    # The gradient of a sort is one of several arrays, with padding of one dtype for all of them: the process ends. The
    # gradient of a maximum over windows that overlap counts padding, if they are windows of rows.
    if equation.primitive.name == "sort":
        return len(equation.invars) > 1
    if not equation.primitive.name.startswith("select_and_"):
        return False
    windows, shape = equation.params["window_dimensions"], aval_of(equation.invars[-1]).shape
    return not any(window == 1 and size in rows for window, size in zip(windows, shape, strict=True))


def _rows(leaf: Any) -> Any:
    """Returns a leaf of a batch as one array of global rows."""
    if isinstance(leaf, PerReplica):
        stacked = leaf.stacked
        return stacked.reshape(stacked.shape[0] * stacked.shape[1], *stacked.shape[2:])
    return leaf


def as_keras_data(data: Any, strategy: StrategyBase, loop: str) -> Any:
    """Returns the data of a loop as Keras takes it: datasets and per-replica values become global rows."""
    if isinstance(data, DatasetCreator):
        data = strategy.distribute_datasets_from_function(data.dataset_fn, data.input_options)
    elif is_source(data):
        # Predictions come in the order of the rows, which workers that read files of their own do not keep.
        data = strategy.distribute_dataset(data, InputOptions(auto_shard_policy="data") if loop == "predict" else None)
    if not isinstance(data, (DistributedDataset, DistributedDatasetFromFunction)):
        return jax.tree_util.tree_map(_rows, data, is_leaf=is_per_replica) if _has_per_replica(data) else data
    if not data.belongs_to(strategy.placement.mesh_for):
        raise StrategyMismatchError(
            f"The dataset was distributed by another strategy than the model's, {strategy!r}. Use that one."
        )
    return _adapter_class()(data, strategy.placement.group.may_change)


def is_source(data: Any) -> bool:
    """Returns whether data are a source whose passes differ, and of which a loop makes a dataset."""
    return isinstance(data, (FileSource, RowBatches))


def passes_of_epoch(source: Any) -> int:
    """Returns how many passes an epoch over a source is; 0 if it does not end."""
    return source.epochs if isinstance(source, RowBatches) else 1


def is_of_dataset(adapter: Any) -> bool:
    """Returns whether batches come from a distributed dataset."""
    return isinstance(adapter, _adapter_class())


def first_batch_of(adapter: Any) -> PyTree:
    """Returns zeros like the first batch of a distributed dataset, of which no batch is lost; None for other data."""
    return adapter.dataset.first_rows() if is_of_dataset(adapter) else None


def dataset_of(data: Any) -> Any:
    """Returns the distributed dataset in the data of a loop, as `as_keras_data` has returned them; None for others."""
    return getattr(data, "dataset", None) if is_of_dataset(data) else None


def _has_per_replica(data: Any) -> bool:
    return any(is_per_replica(leaf) for leaf in jax.tree_util.tree_leaves(data, is_leaf=is_per_replica))


@functools.cache
def _adapter_class() -> type:
    adapter_class: Any = data_adapter_class()

    class DistributedDatasetAdapter(adapter_class):
        """Gives the batches of a distributed dataset to Keras's loops."""

        def __init__(self, dataset: Any, workers_change: bool):
            self.dataset = dataset
            # Between processes only the dataset can put the parts of a batch together, since it can send rows. And only
            # its global batches can be split anew for other workers.
            self._is_global = dataset.num_workers > 1 or workers_change

        def get_jax_iterator(self) -> Iterator[Any]:
            with self.dataset.global_batches() if self._is_global else iter(self.dataset) as steps:
                for batch in steps:
                    yield jax.tree_util.tree_map(_rows, batch, is_leaf=is_per_replica)

        get_numpy_iterator = get_jax_iterator

        @property
        def num_batches(self) -> int | None:
            try:
                return len(self.dataset)
            except TypeError:  # an iterable of unknown length
                return None

        batch_size = has_partial_batch = partial_batch_size = None

    return DistributedDatasetAdapter
