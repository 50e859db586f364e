"""Batches on the host: elements gathered into batches, and batches checked for their size."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import NamedTuple

import jax
import numpy as np
from jax.tree_util import PyTreeDef

from replicax.data.batches import count_rows, host_batch, is_array
from replicax.data.sources import HostBatches
from replicax.errors import BatchError
from replicax.typing import Leaf, PyTree


class _ElementKind(NamedTuple):
    """The structure that all elements of a batch have in common."""

    treedef: PyTreeDef
    leaves: list[tuple[tuple[int, ...], np.dtype]]  # shape and dtype of each


def batched(elements: HostBatches, size: int) -> Generator[PyTree]:
    """Yields batches of `size` elements, the last of what is left; each overwrites the memory of the one before."""
    expected: _ElementKind | None = None
    buffers: list[np.ndarray] = []
    filled = 0
    with elements.open_source() as opened:  # Past the checks of batches: an element need not have rows.
        for index, element in enumerate(opened):
            row = host_batch(jax.tree.map(_as_row, element), f"Element {index} of the dataset")
            leaves, treedef = jax.tree.flatten(row)
            found = _ElementKind(treedef, [(leaf.shape[1:], leaf.dtype) for leaf in leaves])
            if expected is None:
                expected = found
                buffers = [np.empty((size, *leaf.shape[1:]), leaf.dtype) for leaf in leaves]
            _check_element(index, found, expected)
            for buffer, leaf in zip(buffers, leaves, strict=True):
                buffer[filled] = leaf[0]  # Copied at once: a source may overwrite its elements too.
            filled += 1
            if filled == size:
                yield jax.tree.unflatten(treedef, buffers)
                filled = 0
        if filled and expected is not None:
            yield expected.treedef.unflatten([buffer[:filled] for buffer in buffers])


def of_size(batches: HostBatches, size: int) -> Generator[PyTree]:
    """Yields the batches, and checks that each has `size` rows; the last may have fewer."""
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
                    "is batched already yields global batches: pass their size as global_batch_size."
                )
            yield batch


def _as_row(leaf: Leaf) -> Leaf:
    """Returns a leaf of an element as a batch of one row. Anything else stays as it is; `host_batch` refuses it."""
    if isinstance(leaf, np.ndarray) or hasattr(leaf, "unsqueeze"):  # A torch tensor: the row shares its memory.
        return leaf[None]
    if is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return np.asarray(leaf)[None]
    return leaf


def _check_element(index: int, found: _ElementKind, expected: _ElementKind) -> None:
    if found != expected:
        before, now = (
            f"{treedef} of " + ", ".join(f"{dtype}{list(shape)}" for shape, dtype in leaves)
            for treedef, leaves in (expected, found)
        )
        raise BatchError(
            f"Element {index} of the dataset differs in structure, shape or dtype from the elements before it.\n"
            f"  before: {before}\n  element {index}: {now}\nA batch needs equal elements: pad them to one shape."
        )
