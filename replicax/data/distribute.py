"""Distributed datasets: what a training loop iterates over."""

from __future__ import annotations

import abc
import contextlib
import logging
from collections.abc import Callable, Generator, Iterable
from typing import Any

import jax
from jax.sharding import Mesh

from replicax.data.context import InputContext
from replicax.data.iterator import DistributedIterator
from replicax.data.options import InputOptions
from replicax.data.passes import check_may_be_empty, peek
from replicax.data.placement import device_dtype, place
from replicax.data.prefetch import prefetch
from replicax.data.sources import host_batches
from replicax.data.split import Split, group_batches, split_batch, split_group
from replicax.errors import ArgumentError, BatchError

_log = logging.getLogger(__name__)


class _Distributed(Iterable[Any], abc.ABC):
    """What the two kinds of distributed datasets share: passes, placement, prefetching, `element_spec`."""

    _keeps_peeked_pass: bool

    def __init__(self, num_replicas: int, mesh_for: Callable[[int], Mesh], options: InputOptions | None):
        if options is not None and not isinstance(options, InputOptions):
            raise ArgumentError(f"`options` is an rx.InputOptions, got {options!r}.")
        self._num_replicas = num_replicas
        self._mesh_for = mesh_for
        self._options = options or InputOptions()
        self._spec: Any = None
        self._peeked_pass: Generator[Split] | None = None

    @abc.abstractmethod
    def _splits(self) -> Generator[Split | None]:
        """Opens the source and yields the data of its steps, None for each that is dropped."""

    def __iter__(self) -> DistributedIterator:
        splits, self._peeked_pass = self._peeked_pass or self._open_pass(), None
        return DistributedIterator(prefetch(self._place(splits), self._options.prefetch))

    def belongs_to(self, mesh_for: Callable[[int], Mesh]) -> bool:
        """Returns whether this dataset was made for the meshes of `mesh_for`."""
        return self._mesh_for == mesh_for

    def __bool__(self) -> bool:
        return True  # Else Python would ask `__len__`, which not every dataset knows.

    @property
    def element_spec(self) -> Any:
        """What one replica gets in the first step: a nest of `jax.ShapeDtypeStruct`.

        Before the first pass the source is opened to look at its first batch. No data is lost: an iterator's first
        batch is kept for the coming pass; other sources start anew.

        Raises:
            BatchError: There is no batch.
        """
        if self._spec is None:
            self._peeked_pass = peek(self._open_pass(), keep=self._keeps_peeked_pass)
        return self._spec

    def _open_pass(self) -> Generator[Split]:
        kept = dropped = 0
        with contextlib.closing(self._splits()) as splits:
            for split in splits:
                if split is None:
                    dropped += 1
                    continue
                kept += 1
                if self._spec is None:
                    self._spec = _component_spec(split)
                    self._warn_of_idle_replicas(split)
                yield split
        if not kept:
            self._check_empty_pass(dropped)

    def _warn_of_idle_replicas(self, first: Split) -> None:
        if first.replicas < self._num_replicas:
            rows = first.replicas * jax.tree.leaves(first.parts)[0].shape[1]
            _log.warning(
                "The first batch has %d rows and is split over %d of %d replicas, because that many divide it: exact, "
                "but the others stand idle. Use a batch size that is a multiple of %d.",
                rows, first.replicas, self._num_replicas, self._num_replicas,
            )  # fmt: skip

    def _check_empty_pass(self, dropped: int) -> None:
        if dropped:
            raise BatchError(
                f"remainder='drop' left nothing of this dataset: each of its {dropped} batch(es) is too small for "
                f"{self._num_replicas} replicas. Use larger batches or remainder='exact'."
            )
        check_may_be_empty(gave_batches_before=self._spec is not None)

    def _place(self, splits: Generator[Split]) -> Generator[Any]:
        with contextlib.closing(splits):
            for split in splits:
                yield place(split.parts, self._mesh_for(split.replicas), bare=self._num_replicas == 1)


class DistributedDataset(_Distributed):
    """A dataset of global batches, each split among the replicas; made by `strategy.distribute_dataset`.

    Iterating yields one element per step: the nest of a batch with a `PerReplica` for each array; with one replica, a
    plain array on its device. It can be iterated as often as its source.

    Args:
        source: Where the batches come from; see `replicax.data.sources.host_batches`.
        num_replicas: Number of replicas of the strategy.
        mesh_for: Returns the mesh of the strategy's first k devices.
        options: Prefetching and what happens to batches that do not divide; None for the defaults.
        batch_size: Rows of a global batch, if `source` is arrays.

    Raises:
        ArgumentError: An argument has the wrong type or value, or is missing.
        BatchError: Arrays were given that disagree in their number of rows, have none, or cannot be split.
    """

    def __init__(
        self,
        source: Any,
        *,
        num_replicas: int,
        mesh_for: Callable[[int], Mesh],
        options: InputOptions | None = None,
        batch_size: int | None = None,
    ):
        super().__init__(num_replicas, mesh_for, options)
        if isinstance(source, _Distributed):
            raise ArgumentError("This dataset is distributed already; distribute the dataset that it was made from.")
        self._batches = host_batches(source, batch_size)
        self._keeps_peeked_pass = self._batches.one_shot

    def __len__(self) -> int:
        """Number of steps of a pass, where the source knows its number of batches.

        With remainder="drop", steps dropped for want of rows are discounted for arrays only. A Grain dataset with a
        `filter` counts what the filter takes away.

        Raises:
            ArgumentError: The source does not know.
        """
        last_rows = self._batches.last_rows
        drops_last = self._options.remainder == "drop" and last_rows is not None and last_rows < self._num_replicas
        return len(self._batches) - drops_last

    def _splits(self) -> Generator[Split | None]:
        with contextlib.closing(iter(self._batches)) as batches:
            for batch in batches:
                yield split_batch(batch, self._num_replicas, self._options.remainder)


class DistributedDatasetFromFunction(_Distributed):
    """A dataset of per-replica batches; made by `strategy.distribute_datasets_from_function`.

    Each pass calls `dataset_fn` once. Consecutive batches of what it returns go to consecutive replicas, one step for
    `num_replicas` of them. How the end of the data is shared out says `replicax.data.split.split_group`.

    Args:
        dataset_fn: Takes an `InputContext` and returns batches for one replica each: anything that
            `replicax.data.sources.host_batches` takes without `batch_size`.
        num_replicas: Number of replicas of the strategy.
        mesh_for: Returns the mesh of the strategy's first k devices.
        options: Prefetching and what happens to the end of the data; None for the defaults.

    Raises:
        ArgumentError: `dataset_fn` is not callable, or `options` are not `InputOptions`.
    """

    _keeps_peeked_pass = True  # So that `dataset_fn` runs once per pass, as promised.

    def __init__(
        self,
        dataset_fn: Callable[[InputContext], Any],
        *,
        num_replicas: int,
        mesh_for: Callable[[int], Mesh],
        options: InputOptions | None = None,
    ):
        super().__init__(num_replicas, mesh_for, options)
        if not callable(dataset_fn):
            raise ArgumentError(
                f"`dataset_fn` is a function of an rx.InputContext that returns a dataset, got {dataset_fn!r:.80}."
            )
        self._dataset_fn = dataset_fn

    def _splits(self) -> Generator[Split | None]:
        source = host_batches(lambda: self._dataset_fn(InputContext(1, 0, self._num_replicas)))
        with contextlib.closing(iter(source)) as batches:
            for group in group_batches(batches, self._num_replicas):
                yield split_group(group, self._num_replicas, self._options.remainder)


def _component_spec(split: Split) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], device_dtype(leaf.dtype)), split.parts)
