"""Batches on the host: elements gathered into batches, and batches checked for their size."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import jax
import numpy as np

from replicax.data.batches import count_rows, host_batch, is_array
from replicax.data.sources import HostBatches
from replicax.errors import BatchError


def batched(elements: HostBatches, size: int) -> Generator[Any]:
    """Yields batches of `size` elements, the last one of what is left.

    A batch is in memory that the next one overwrites. Elements are copied as they come, as a source may do so too.
    """
    expected: Any = None
    buffers: list[np.ndarray] = []
    filled = 0
    with elements.open_source() as opened:  # Past the checks of batches: an element need not have rows.
        for index, element in enumerate(opened):
            row = host_batch(jax.tree.map(_as_row, element), f"Element {index} of the dataset")
            leaves, treedef = jax.tree.flatten(row)
            found = treedef, [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            if expected is None:
                expected = found
                buffers = [np.empty((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            _check_element(index, found, expected)
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[filled] = leaf[0]
            filled += 1
            if filled == size:
                yield jax.tree.unflatten(treedef, buffers)
                filled = 0
        if filled:
            yield expected[0].unflatten([buffer[:filled] for buffer in buffers])


def of_size(batches: HostBatches, size: int) -> Generator[Any]:
    """Yields the batches; checks that all have `size` rows but the last, which may have fewer."""
    with contextlib.closing(iter(batches)) as opened:
        last = size
        for index, batch in enumerate(opened):
            if last < size:
                raise BatchError(
                    f"Batch {index - 1} of the dataset has {last} rows, fewer than global_batch_size={size}, but batch "
                    f"{index} follows. Only the last batch may be smaller."
                )
            last = count_rows(batch)
            if last > size:
                raise BatchError(
                    f"Batch {index} of the dataset has {last} rows, more than global_batch_size={size}. A dataset that "
                    "is batched already yields global batches: give their size as global_batch_size."
                )
            yield batch


def _as_row(leaf: Any) -> Any:
    """Returns a leaf of an element as a batch of one row; what is no array as it is, for `host_batch` to refuse."""
    if isinstance(leaf, np.ndarray) or hasattr(leaf, "unsqueeze"):  # torch's share their memory
        return leaf[None]
    if is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return np.asarray(leaf)[None]
    return leaf


def _check_element(index: int, found: Any, expected: Any) -> None:
    if found != expected:
        before, now = (
            f"{treedef} of " + ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
            for treedef, leaves in (expected, found)
        )
        raise BatchError(
            f"Element {index} of the dataset differs in structure, shape or dtype from the elements before it.\n"
            f"  before: {before}\n  element {index}: {now}\nOnly equal ones make a batch: pad them to one shape."
        )
