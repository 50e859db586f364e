"""How the rows of a global batch are split among the replicas: pure functions on host arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import jax
import numpy as np

from replicax.data.batches import count_rows
from replicax.errors import BatchError
from replicax.typing import PyTree


class SplitBatch(NamedTuple):
    """The batch of one step, split into one part per replica.

    Attributes:
        replicas: How many replicas take part: always the first ones.
        parts: Pytree of arrays of shape `(parts, rows of a part, ...)`, one part per replica; where there are several
            workers, the parts of this worker's replicas are enough.
        first: The id of the replica that the first part is for; the others follow.
    """

    replicas: int
    parts: PyTree
    first: int = 0


def usable_replicas(rows: int, num_replicas: int) -> int:
    """Returns the largest number of replicas, up to `num_replicas`, that share `rows` rows evenly.

    Example:
        >>> [usable_replicas(rows, 8) for rows in (32, 12, 9, 7, 11)]
        [8, 6, 3, 7, 1]
    """
    return max(k for k in range(1, min(rows, num_replicas) + 1) if rows % k == 0)


def split_batch(batch: PyTree, num_replicas: int, remainder: str) -> SplitBatch | None:
    """Splits the rows of a global batch in order: the first part is for replica 0, the next for replica 1, ...

    No row is padded, repeated or moved, so whatever a step computes from its rows is exact.

    Args:
        batch: Pytree of arrays of shape `(rows, ...)` with at least 1 row.
        num_replicas: Number of replicas that the strategy has.
        remainder: `"exact"`: as many replicas as divide the rows take part (see `usable_replicas`) and every row is
            used. `"drop"`: all replicas take part, and the last `rows % num_replicas` rows are dropped.

    Returns:
        Views of the batch; None if `"drop"` leaves nothing (fewer rows than replicas).
    """
    rows = count_rows(batch)
    if remainder == "drop":
        rows -= rows % num_replicas
        if rows == 0:
            return None
    replicas = usable_replicas(rows, num_replicas)
    shape = (replicas, rows // replicas)
    return SplitBatch(replicas, jax.tree.map(lambda leaf: leaf[:rows].reshape(*shape, *leaf.shape[1:]), batch))


def part_of(batch: PyTree, first: int, count: int, rows: int) -> PyTree:
    """Returns some parts of a batch whose parts have `rows` rows: views of shape `(count, rows, ...)`."""
    begin, end = first * rows, (first + count) * rows
    return jax.tree.map(lambda leaf: leaf[begin:end].reshape(count, rows, *leaf.shape[1:]), batch)


def group_batches(batches: Iterable[PyTree], num_replicas: int) -> Iterator[list[PyTree]]:
    """Yields `num_replicas` consecutive batches at a time; the last group may be shorter.

    The batches of a group are copies: a source may reuse one buffer for all its batches.
    """
    iterator = iter(batches)
    while group := [_owned(batch, num_replicas) for batch in islice(iterator, num_replicas)]:
        yield group


def _owned(batch: PyTree, num_replicas: int) -> PyTree:
    return jax.tree.map(np.array, batch) if num_replicas > 1 else batch


def split_group(group: Sequence[PyTree], num_replicas: int, remainder: str) -> SplitBatch | None:
    """Makes a step of batches that were made for one replica each.

    In a full group of equally large batches, batch i goes to replica i. Any other group (the tail of the data, or
    batches of different sizes) is split as one global batch of all its rows, so that the step is exact: the rows keep
    their order, but a row may go to another replica than in a full group.

    Args:
        group: 1 to `num_replicas` pytrees of arrays of shape `(rows, ...)`, of one structure.
        num_replicas: Number of replicas that the strategy has.
        remainder: `"exact"`, or `"drop"`: only full groups of equally large batches are used.

    Returns:
        The data of the step, or None if the group is dropped.

    Raises:
        BatchError: The batches differ in more than their number of rows.
    """
    check_row_shapes(group)
    even = len({count_rows(batch) for batch in group}) == 1
    if even and len(group) == num_replicas:
        return SplitBatch(num_replicas, jax.tree.map(lambda *parts: np.stack(parts), *group))
    if remainder == "drop":
        return None
    return split_batch(jax.tree.map(lambda *parts: np.concatenate(parts), *group), num_replicas, remainder)


def check_row_shapes(group: Sequence[PyTree]) -> None:
    """Checks that the rows of several batches can be concatenated.

    Raises:
        BatchError: They have different shapes.
    """
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(batch)] for batch in group]
    if any(found != shapes[0] for found in shapes):
        raise BatchError(
            f"The batches for the replicas of one step have rows of different shapes: {shapes}. One compiled step "
            "serves all replicas: pad the rows of these batches to a common shape."
        )
