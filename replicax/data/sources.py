"""Sources of data: whatever a user has, as an iterable of host batches that are checked one by one.

With `batch_size`, a source is arrays (an array, tuple, dict, any pytree but a list): the first dimension of every leaf
is the rows, which come in order, `batch_size` at a time; the last batch may have fewer. Without, it is anything that
yields batches: a list, a generator, a Grain dataset or `DataLoader`, a torch `DataLoader`, a `tf.data.Dataset`, an
object with `__len__` and `__getitem__`, or a function without arguments that returns one of these.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import SupportsIndex

import jax
import numpy as np

from replicax.data.batches import check_goes_on_after, check_signature, count_rows, host_batch, is_array, signature
from replicax.errors import ArgumentError, BatchError
from replicax.typing import Leaf, PyTree

_NARROW = {"float64": "float32", "int64": "int32"}


class HostBatches(Iterable[PyTree]):
    """The batches of a source, as pytrees of NumPy arrays; each pass opens the source anew and checks every batch."""

    def __init__(
        self,
        open_source: Callable[[], Iterator[PyTree]],
        name: str,
        *,
        length: Callable[[], int] | None = None,
        one_shot: bool = False,
        last_rows: int | None = None,
        lasts: bool = False,
    ):
        # Unless the batches last, their arrays may share the source's memory: they keep their values only until the
        # next batch is taken.
        self.name, self.lasts = name, lasts
        self.one_shot = one_shot  # whether the source is an iterator, which allows only one pass
        self.last_rows = last_rows  # of the last batch; None if it is not known
        self._open_pass = open_source
        self._length = length
        self._used = False

    @contextlib.contextmanager
    def open_source(self) -> Generator[Iterator[PyTree]]:
        """Opens the source for a pass; what it yields is not checked, so it need not be batches."""
        if self._used and self.one_shot:
            raise BatchError(
                f"The dataset is an iterator ({self.name}) and allows only one pass; this is the second pass. "
                "Give something that starts anew each time: a list, a dataset, or a function that returns an iterator."
            )
        self._used = True
        opened = self._open_pass()
        try:
            yield opened
        finally:
            close = getattr(opened, "close", None)
            if close is not None and not self.one_shot:  # The user made an iterator, and may close it.
                close()

    def __iter__(self) -> Generator[PyTree]:
        expected = None
        with self.open_source() as opened:
            for index, raw in enumerate(opened):
                batch = host_batch(raw, f"Batch {index} of the dataset")
                found = signature(batch)
                expected = expected or found
                check_signature(index, found, expected)
                yield batch

    def __len__(self) -> int:
        if self._length is None:
            raise ArgumentError(f"The number of batches of this dataset ({self.name}) is unknown before its end.")
        return self._length()


class ArrayBatches(HostBatches):
    """The batches of a pytree of arrays: views."""

    def __init__(self, arrays: PyTree, size: int):
        self.arrays, self.size = arrays, size  # size: rows of a batch; the last may have fewer
        rows = count_rows(arrays)
        last_rows = rows % size or size
        super().__init__(self.after, "arrays", length=lambda: -(-rows // size), last_rows=last_rows, lasts=True)

    def after(self, rows: int = 0) -> Iterator[PyTree]:
        """Yields the batches that follow the first `rows` rows."""
        check_goes_on_after(rows, count_rows(self.arrays))
        for start in range(rows, count_rows(self.arrays), self.size):
            yield jax.tree.map(lambda leaf: leaf[start : start + self.size], self.arrays)  # noqa: B023 - used at once


def host_batches(source: PyTree, batch_size: int | None = None) -> HostBatches:
    """Returns the batches of `source`; the head of this file says what that can be."""
    if batch_size is not None:
        return _array_batches(source, batch_size)
    name = type(source).__name__
    _check_yields_batches(source)
    if _is_function(source):
        _check_takes_no_argument(source)
        return HostBatches(lambda: _open_made(source), f"{name} {getattr(source, '__name__', '')}".strip())
    if not can_open(source):
        raise ArgumentError(
            f"Cannot read batches from a {name}: {source!r:.80}. Give an iterable of batches, a Grain dataset, a torch "
            "DataLoader, a tf.data.Dataset, a function that returns one of these, or arrays with `batch_size`."
        )
    length = (lambda: len(source)) if hasattr(type(source), "__len__") else None
    return HostBatches(
        lambda: opened(source),
        name,
        length=length,
        one_shot=isinstance(source, Iterator),
        lasts=isinstance(source, (list, tuple)),
    )


def check_batch_size(batch_size: SupportsIndex, name: str = "batch_size") -> int:
    """Returns the number of rows of a global batch as an int; `name` is what the message calls the argument."""
    try:
        size = -1 if isinstance(batch_size, bool) else operator.index(batch_size)
    except TypeError:
        size = -1
    if size < 1:
        raise ArgumentError(f"`{name}` is the number of rows of a global batch, at least 1, got {batch_size!r}.")
    return size


def is_array_pytree(source: PyTree) -> bool:
    """Returns whether `source` is arrays, and not something that yields batches of arrays, as a list does."""
    if source is None or isinstance(source, list):
        return False
    return is_array(source) or not jax.tree_util.all_leaves([source])


def _array_batches(source: PyTree, batch_size: int) -> HostBatches:
    size = check_batch_size(batch_size)
    if not is_array_pytree(source):
        raise ArgumentError(
            f"`batch_size` is for arrays (an array, tuple, dict or other pytree of them), but a "
            f"{type(source).__name__} already yields batches: leave `batch_size` out. (A list is a list of batches; "
            "write a pytree of arrays as a tuple.)"
        )
    return ArrayBatches(host_batch(source, "The dataset"), size)


def _check_yields_batches(source: PyTree) -> None:
    if is_array_pytree(source):
        raise ArgumentError(
            f"The dataset is one {type(source).__name__}, not batches of it: pass batch_size=..., the number of rows "
            "in a global batch. (If it is a collection of batches, make it a list.)"
        )


def _is_function(source: PyTree) -> bool:
    return callable(source) and not can_open(source)


def _check_takes_no_argument(function: Callable[..., object]) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ArgumentError(
            f"A function given as a dataset is called without arguments, but {function!r} needs some ({error}). For a "
            "function of an InputContext there is `strategy.distribute_datasets_from_function`."
        ) from None
    except ValueError:
        pass  # Some built-in callables have no signature: calling them will show.


def can_open(source: PyTree) -> bool:
    """Returns whether `source` is something that batches are read from, and no function."""
    kind = type(source)
    has_items = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return hasattr(source, "as_numpy_iterator") or hasattr(kind, "__iter__") or has_items


def opened(source: PyTree) -> Iterator[PyTree]:
    """Returns an iterator over the batches of a source, which `can_open`."""
    if hasattr(source, "as_numpy_iterator"):  # tf.data
        return iter(source.as_numpy_iterator())
    if hasattr(type(source), "__iter__"):
        return iter(source)
    return (source[index] for index in range(len(source)))


def _open_made(function: Callable[[], PyTree]) -> Iterator[PyTree]:
    made = function()
    if is_array_pytree(made):
        raise ArgumentError(
            f"The dataset function {function!r} returned one {type(made).__name__}, not batches of it: let it yield "
            "batches, or pass the arrays themselves and batch_size=..., the number of rows in a global batch. (If it "
            "is a collection of batches, return a list.)"
        )
    if not can_open(made):
        raise ArgumentError(
            f"The dataset function returned {made!r:.80}, not batches. Let it return an iterable of batches, or write "
            "it as a generator that yields them."
        )
    return opened(made)


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
