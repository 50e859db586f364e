"""How the rows of a global batch are split among the replicas: pure functions on host arrays.

`kept_rows` and `usable_replicas` are the policy for uneven batches (`InputOptions.remainder`): which rows a step has,
and on how many replicas it runs. Everything else asks them.
"""

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
    """The batch of one step, split into one part per replica."""

    replicas: int  # that take part: always the first ones
    parts: PyTree  # of arrays of shape (parts, rows of a part, ...); those of this worker's replicas are enough
    first: int = 0  # the id of the replica that the first part is for; the others follow
    lasts: bool = False  # whether nothing else ever writes to the memory of the parts


def kept_rows(rows: int, num_replicas: int, remainder: str) -> int:
    """Returns how many of the rows of a global batch a step has: always the first ones. It is dropped if it has none.

    Example:
        >>> kept_rows(11, 8, "exact"), kept_rows(11, 8, "drop"), kept_rows(7, 8, "drop")
        (11, 8, 0)
    """
    return rows - rows % num_replicas if remainder == "drop" else rows


def usable_replicas(rows: int, num_replicas: int) -> int:
    """Returns the largest number of replicas, up to `num_replicas`, that share `rows` rows evenly.

    Example:
        >>> [usable_replicas(rows, 8) for rows in (32, 12, 9, 7, 11)]
        [8, 6, 3, 7, 1]
    """
    return next(k for k in range(min(rows, num_replicas), 0, -1) if rows % k == 0)


def split_batch(batch: PyTree, num_replicas: int, remainder: str, lasts: bool = False) -> SplitBatch | None:
    """Splits the rows of a global batch in order; returns views, or None if remainder="drop" leaves nothing."""
    rows = kept_rows(count_rows(batch), num_replicas, remainder)
    if not rows:
        return None
    # No row is padded, repeated or moved, so whatever a step computes from its rows is exact.
    replicas = usable_replicas(rows, num_replicas)
    return SplitBatch(replicas, part_of(batch, 0, replicas, rows // replicas), lasts=lasts)


def part_of(batch: PyTree, first: int, count: int, rows: int) -> PyTree:
    """Returns some parts of a batch whose parts have `rows` rows: views of shape `(count, rows, ...)`."""
    begin, end = first * rows, (first + count) * rows
    return jax.tree.map(lambda leaf: leaf[begin:end].reshape(count, rows, *leaf.shape[1:]), batch)


def group_batches(batches: Iterable[PyTree], num_replicas: int) -> Iterator[list[PyTree]]:
    """Yields `num_replicas` consecutive batches at a time; the last group may be shorter."""
    iterator = iter(batches)
    while group := [_owned(batch, num_replicas) for batch in islice(iterator, num_replicas)]:
        yield group


def _owned(batch: PyTree, num_replicas: int) -> PyTree:
    # A group of several batches needs copies: a source may reuse one buffer for all its batches.
    return jax.tree.map(np.array, batch) if num_replicas > 1 else batch


def split_group(group: Sequence[PyTree], num_replicas: int, remainder: str) -> SplitBatch | None:
    """Makes a step of batches that were made for one replica each; returns None if the group is dropped."""
    check_row_shapes(group)
    even = len({count_rows(batch) for batch in group}) == 1
    if even and len(group) == num_replicas:  # Batch i goes to replica i.
        return SplitBatch(num_replicas, jax.tree.map(lambda *parts: np.stack(parts), *group))
    if remainder == "drop":
        return None
    # The tail of the data, or batches of different sizes: split as one global batch of all rows, so that the step is
    # exact. The rows keep their order, but a row may go to another replica than in a full group.
    return split_batch(jax.tree.map(lambda *parts: np.concatenate(parts), *group), num_replicas, remainder)


def check_row_shapes(group: Sequence[PyTree]) -> None:
    """Checks that the rows of several batches have the same shapes, so that they can be concatenated."""
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(batch)] for batch in group]
    if any(found != shapes[0] for found in shapes):
        raise BatchError(
            f"The batches for the replicas of one step have rows of different shapes: {shapes}. One compiled step "
            "serves all replicas: pad the rows of these batches to a common shape."
        )
