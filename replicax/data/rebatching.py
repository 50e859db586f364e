"""Makes batches of the sizes that a worker needs of batches of any sizes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from replicax.data.batch_placement import owned_copy
from replicax.data.batch_split import check_row_shapes
from replicax.data.batches import check_goes_on_after, count_rows
from replicax.typing import PyTree


class ShardBatch(NamedTuple):
    """A batch as its shard yields it."""

    shard: int  # its index
    batch: PyTree  # of host arrays, which may share the source's memory until the next batch is taken


class WorkerBatch(NamedTuple):
    """The batch that one worker has for a step."""

    batch: PyTree  # in memory of its own; None if the worker has no rows for the step
    rows_of_shards: list[tuple[int, ...]]  # as `RowsRead`, without the worker: at least a shard and its number of rows
    full: bool = False  # whether it is one batch for each of the worker's replicas, all of the same size


def rebatched(batches: Iterable[ShardBatch], size: int) -> Generator[WorkerBatch]:
    """Yields batches of `size` rows, concatenated from parts of batches of any sizes; the last may have fewer."""
    parts: list[PyTree] = []
    rows_of_shards: list[tuple[int, ...]] = []
    missing = size
    for shard, batch in batches:
        start, rows = 0, count_rows(batch)
        while start < rows:
            stop = min(start + missing, rows)
            parts.append(jax.tree.map(lambda leaf: owned_copy(leaf[start:stop]), batch))  # noqa: B023 - used at once
            rows_of_shards.append((shard, stop - start))
            missing -= stop - start
            start = stop
            if not missing:
                yield WorkerBatch(concatenated(parts), rows_of_shards)
                parts, rows_of_shards, missing = [], [], size
    if parts:
        yield WorkerBatch(concatenated(parts), rows_of_shards)


def grouped(batches: Iterable[ShardBatch], count: int) -> Generator[WorkerBatch]:
    """Yields batches of `count` consecutive batches each; the last may be of fewer."""
    parts: list[PyTree] = []
    rows_of_shards: list[tuple[int, ...]] = []
    for shard, batch in batches:
        parts.append(jax.tree.map(owned_copy, batch))
        rows_of_shards.append((shard, count_rows(batch)))
        if len(parts) == count:
            yield WorkerBatch(
                concatenated(parts), rows_of_shards, full=len({rows for _, rows, *_ in rows_of_shards}) == 1
            )
            parts, rows_of_shards = [], []
    if parts:
        yield WorkerBatch(concatenated(parts), rows_of_shards)


def skip_rows(batches: Iterable[PyTree], rows: int) -> Generator[PyTree]:
    """Yields what follows the first `rows` rows."""
    left = rows
    for batch in batches:
        found = count_rows(batch)
        if left >= found:
            left -= found
            continue
        yield jax.tree.map(lambda leaf: leaf[left:], batch) if left else batch  # noqa: B023 - used at once
        left = 0
    check_goes_on_after(rows, rows - left)


def concatenated(parts: Sequence[PyTree]) -> PyTree:
    """Returns the rows of several batches as one batch."""
    if len(parts) == 1:
        return parts[0]
    check_row_shapes(parts)
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
