"""Arrays as a source of single rows, for pipelines of Grain."""

from __future__ import annotations

import jax
import numpy as np

from replicax.errors import ArgumentError
from replicax.typing import Leaf, PyTree

_NARROW = {"float64": "float32", "int64": "int32"}


class ArraySource:
    """The rows of arrays, one after the other: the source of a `grain.MapDataset`.

    It is what `tf.data.Dataset.from_tensor_slices` is to `tf.data`. Lists of numbers are arrays, as there: of float32
    or int32. Tuples and dicts are containers.

    Args:
        arrays: A pytree of arrays with the same number of rows.

    Raises:
        ArgumentError: There is no array, one has no rows' axis, or their numbers of rows differ.

    Example:
        >>> source = ArraySource({"x": [[1.0, 2.0], [3.0, 4.0]], "y": [0, 1]})
        >>> len(source), source[1]["y"].item()
        (2, 1)
    """

    def __init__(self, arrays: PyTree):
        self._arrays = _as_arrays(arrays)
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self._arrays)]
        if not shapes or any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
            raise ArgumentError(f"`arrays` have the same number of rows, at least one axis each; got shapes {shapes}.")
        self._rows = shapes[0][0]

    @classmethod
    def of_one(cls, element: PyTree) -> ArraySource:
        """Returns a source with one element, as `tf.data.Dataset.from_tensors` makes."""
        return cls(jax.tree.map(lambda leaf: leaf[None], _as_arrays(element)))

    def __len__(self) -> int:
        return int(self._rows)

    def __getitem__(self, index: int) -> PyTree:
        """Returns row `index` of all arrays, in the same structure."""
        return jax.tree.map(lambda leaf: leaf[index], self._arrays)

    def __repr__(self) -> str:
        return f"ArraySource({jax.tree.map(lambda leaf: f'{leaf.dtype}{list(leaf.shape)}', self._arrays)})"


def _as_arrays(arrays: PyTree) -> PyTree:
    return jax.tree.map(_as_array, arrays, is_leaf=lambda node: isinstance(node, list))


def _as_array(leaf: Leaf) -> np.ndarray:
    array = np.asarray(leaf)
    if hasattr(leaf, "dtype"):
        return array
    if array.dtype.kind not in "biufc":
        raise ArgumentError(f"`arrays` are arrays of numbers, got {leaf!r:.100}. Give texts as an array of NumPy's.")
    return array.astype(_NARROW.get(array.dtype.name, array.dtype.name))
