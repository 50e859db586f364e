"""Datasets of the library `datasets`, from the Hugging Face Hub or from disk."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from replicax.data.rows import Rows
from replicax.errors import ArgumentError

_log = logging.getLogger(__name__)


def from_hugging_face(dataset: Any) -> Rows:
    """Returns the rows of a `datasets.Dataset`, or of an `IterableDataset` that streams them.

    Of a `Dataset` any row can be read by its number, so `shuffle` shuffles it as a whole. An `IterableDataset` comes
    from its beginning: its shards are dealt to the workers as files are. When training goes on in the middle of an
    epoch, the shards that were begun are read again up to the place.

    Args:
        dataset: The dataset. Do not shuffle a streaming one yourself: `rows.shuffle` knows where it is.

    Raises:
        ArgumentError: It is neither; or a dictionary of splits, of which you choose one.

    Example:
        >>> rows = rx.data.from_hugging_face(datasets.load_dataset("mnist", split="train"))  # doctest: +SKIP
        >>> model.fit(rows.map(to_x_and_y).shuffle(seed=1).batch(256))  # doctest: +SKIP
    """
    if isinstance(dataset, dict):
        raise ArgumentError(f"`dataset` is one split, got several: {sorted(dataset)}. Choose one: dataset[...].")
    kinds = {kind.__name__ for kind in type(dataset).__mro__ if kind.__module__.partition(".")[0] == "datasets"}
    if "IterableDataset" in kinds:
        return Rows(_Streamed(dataset))
    if "Dataset" in kinds:
        return Rows(_Indexed(dataset))
    raise ArgumentError(f"`dataset` is a datasets.Dataset or IterableDataset, got {dataset!r:.100}.")


class _Indexed:
    """The rows of a dataset that is on disk, as dicts of arrays."""

    lasts = True

    def __init__(self, dataset: Any):
        self._dataset = dataset if dataset.format["type"] is not None else dataset.with_format("numpy")

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row: dict[str, Any] = self._dataset[index]
        return row

    def rows_at(self, indices: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = self._dataset[indices.tolist()]
        if not all(isinstance(each, np.ndarray) and each.dtype != object for each in found.values()):
            raise ValueError("Columns that are no arrays of numbers: their rows are made one by one.")
        return found

    def name_of(self, index: int) -> tuple[str, int]:
        return f"datasets.Dataset {self._dataset.info.dataset_name or ''}".strip(), index


class _Streamed:
    """The shards of a dataset that comes over the network."""

    def __init__(self, dataset: Any):
        self._dataset = dataset
        name = getattr(dataset.info, "dataset_name", None) or "datasets.IterableDataset"
        self.files: Sequence[str] = [f"{name} (shard {index})" for index in range(max(1, dataset.num_shards))]

    def read(self, file: int, first: int) -> Iterator[Any]:
        """Yields the rows of a shard from number `first` on."""
        shard = self._dataset
        if len(self.files) > 1:
            shard = shard.shard(num_shards=len(self.files), index=file)
        if first:
            _log.info("%s: reads %d rows again, up to where the training was.", self.files[file], first)
        yield from itertools.islice(iter(shard), first, None)
