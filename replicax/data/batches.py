"""Batches: pytrees of host arrays that agree in their number of rows. Every batch is checked here."""

from __future__ import annotations

import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import is_random_key
from replicax.errors import BatchError
from replicax.typing import Leaf, PyTree
from replicax.values import MASKED

_NUMBERS = "biufc"  # kinds of NumPy's own dtypes; others, such as bfloat16, only JAX knows
#: A way out, for messages.
TO_ONE_SHAPE = (
    "Let `padded_batch` in the place of `batch` of rx.data.Rows pad them to the longest of each batch, or a `map` pad, "
    "crop or resize them to one shape."
)


class Signature(NamedTuple):
    """The properties that all batches of a dataset have in common."""

    structure: jax.tree_util.PyTreeDef
    leaves: tuple[tuple[int, np.dtype], ...]  # rank and dtype of each


def is_array(value: object) -> bool:
    """Returns whether `value` holds numbers in NumPy's sense: a NumPy, JAX, torch or TensorFlow array, a table."""
    return hasattr(type(value), "__array__")


def host_batch(batch: PyTree, where: str) -> PyTree:
    """Returns a batch as NumPy arrays, which share its memory where they can; error messages begin with `where`."""
    leaves, treedef = jax.tree.flatten(batch)
    arrays = _host_arrays(leaves, batch, where)
    if not arrays:
        raise BatchError(f"{where} holds no array: {batch!r}.")
    for index, array in enumerate(arrays):
        if array.ndim == 0:
            raise BatchError(
                f"{where}{leaf_name(batch, index)}: a scalar ({leaves[index]!r}) has no rows that replicas could "
                "share. The first dimension of a leaf is the batch's rows: batch the dataset; turn lists of numbers "
                "into arrays; repeat a constant once per row, or pass it to `strategy.run` as an argument of its own."
            )
    _check_rows([len(array) for array in arrays], batch, where)
    return jax.tree.unflatten(treedef, arrays)


def host_arrays(tree: PyTree, where: str) -> PyTree:
    """Returns a pytree with every leaf as a NumPy array, as `host_batch`, but the leaves need not have rows."""
    leaves, treedef = jax.tree.flatten(tree)
    return jax.tree.unflatten(treedef, _host_arrays(leaves, tree, where))


def _host_arrays(leaves: list[Leaf], tree: PyTree, where: str) -> list[np.ndarray]:
    arrays = []
    for index, leaf in enumerate(leaves):
        try:
            arrays.append(_host_array(leaf))
        except _LeafError as error:
            raise BatchError(f"{where}{leaf_name(tree, index)}: {error}") from error.__cause__
    return arrays


def array_of_row(value: Leaf) -> np.ndarray:
    """Returns a value of a row as a NumPy array; a mask would be lost."""
    if isinstance(value, np.ma.MaskedArray):
        raise BatchError(f"A row has {MASKED}")
    return np.asarray(value)


def count_rows(batch: PyTree) -> int:
    """Returns the number of rows of a batch that `host_batch` has checked."""
    return len(jax.tree.leaves(batch)[0])


def check_goes_on_after(rows: int, there_are: int) -> None:
    """Checks that a source has as many rows as the training loop has got of it."""
    if rows > there_are:
        raise BatchError(f"The pass should continue after row {rows}, but there are only {there_are} rows.")


def signature(batch: PyTree) -> Signature:
    """Returns the signature of a batch that `host_batch` has checked."""
    leaves, treedef = jax.tree.flatten(batch)
    return Signature(treedef, tuple((leaf.ndim, leaf.dtype) for leaf in leaves))


def is_like(batch: PyTree, expected: Signature | None) -> bool:
    """Returns whether a batch has a signature, and is what `host_batch` would return for it."""
    leaves, structure = jax.tree.flatten(batch)
    if expected is None or structure != expected.structure:
        return False
    of_numpy = all(type(leaf) is np.ndarray and leaf.shape for leaf in leaves)
    if not of_numpy or tuple((leaf.ndim, leaf.dtype) for leaf in leaves) != expected.leaves:
        return False
    rows = {len(leaf) for leaf in leaves}
    return len(rows) == 1 and 0 not in rows


def check_signature(index: int, found: Signature, expected: Signature) -> None:
    """Checks that batch `index` has the signature of the batches before it: one compiled step serves them all."""
    if found != expected:
        raise BatchError(
            f"Batch {index} differs in structure, rank or dtype from the batches before it.\n"
            f"  before:   {_describe(expected)}\n  batch {index}: {_describe(found)}\n"
            "All batches of a dataset must have the same; only sizes may change."
        )


def _describe(found: Signature) -> str:
    return f"{found.structure} of " + ", ".join(f"{dtype} of rank {rank}" for rank, dtype in found.leaves)


class _LeafError(Exception):
    """Says what is wrong with a leaf; `host_batch` adds which leaf it is."""


def _host_array(leaf: Leaf) -> np.ndarray:
    if isinstance(leaf, np.ma.MaskedArray):
        raise _LeafError(MASKED)
    array = _as_numpy(leaf)
    # A difference of times is an integer to NumPy.
    if array.dtype.kind == "m" or (array.dtype.kind not in _NUMBERS and not jnp.issubdtype(array.dtype, np.number)):
        if array.dtype == object and any(isinstance(value, (np.ndarray, list)) for value in array.flat):
            raise _LeafError(
                "values of dtype object: they are arrays or lists, as those of several lengths are, and devices hold "
                f"arrays of one shape. {TO_ONE_SHAPE}"
            )
        raise _LeafError(
            f"values of dtype {array.dtype} cannot be placed on a device. Encode them as numbers, or leave them out of "
            "the batch."
        )
    return array


def _as_numpy(leaf: Leaf) -> np.ndarray:
    if isinstance(leaf, np.ndarray):
        return leaf
    torch_tensor = getattr(sys.modules.get("torch"), "Tensor", None)  # No import: without torch there are no tensors.
    if is_random_key(leaf):
        raise _LeafError(
            "random keys are not numbers. Put jax.random.key_data(keys) in the batch: functions of jax.random take a "
            "row of it as a key, and jax.random.wrap_key_data(rows) makes keys of them again."
        )
    try:
        if torch_tensor is not None and isinstance(leaf, torch_tensor):
            return _from_torch(leaf)
        if is_array(leaf) or isinstance(leaf, (bool, int, float, complex)):
            return np.asarray(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _LeafError(f"this {type(leaf).__name__} cannot become a NumPy array: {error}") from error
    raise _LeafError(
        f"a {type(leaf).__name__} is not an array: {leaf!r:.80}. A batch is an array, or a pytree (tuple, list, "
        "dict, ...) of arrays."
    )


def _from_torch(tensor: Leaf) -> np.ndarray:
    """Shares the memory of a tensor that lives on the CPU."""
    if str(tensor.dtype) == "torch.bfloat16":  # NumPy itself does not know this dtype: pass the bits.
        return tensor.detach().view(sys.modules["torch"].int16).numpy(force=True).view(jnp.bfloat16)
    return tensor.numpy(force=True)


def _check_rows(rows: list[int], batch: PyTree, where: str) -> None:
    if len(set(rows)) > 1:
        listed = "; ".join(f"{count} rows{leaf_name(batch, index)}" for index, count in enumerate(rows))
        raise BatchError(f"{where}: the leaves disagree in their number of rows (first dimension): {listed}.")
    if rows[0] == 0:
        raise BatchError(f"{where} has zero rows. Leave empty batches out: there is nothing to compute a step from.")


def leaf_name(batch: PyTree, index: int) -> str:
    """Returns the name of a leaf in a message: `, leaf ['x']`; nothing if the batch is a leaf itself."""
    path, _ = jax.tree_util.tree_flatten_with_path(batch)[0][index]
    return f", leaf {jax.tree_util.keystr(path)}" if path else ""
