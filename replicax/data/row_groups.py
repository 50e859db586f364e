"""Batches that depend on what is in their rows: padded, of rows of about one length, packed.

Each is made of consecutive rows of one stream, so every worker makes all of them, and takes the part of its replicas.
The rows that a group still holds back are rows that the loop has not got: they are read again after a restart, and fall
into the same places. So no group needs a place in a checkpoint.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checks import checked_int, is_int
from replicax.data.batches import array_of_row
from replicax.data.extras import needed
from replicax.data.row_plans import Item
from replicax.errors import ArgumentError
from replicax.typing import PyTree

RowStream = Iterator[tuple[Item, Any]]


class Group(NamedTuple):
    """The rows of a batch, and the rows of the source that they were made of."""

    rows: Sequence[Any]
    items: list[Item]


class RowFaultError(Exception):
    """A row that cannot be in a batch."""

    def __init__(self, item: Item, reason: str):
        self.item, self.reason = item, reason
        super().__init__(reason)


class Grouping(Protocol):
    """A way to make batches of rows."""

    def groups(self, rows: RowStream) -> Iterator[Group]:
        """Yields the rows of one batch after the other.

        Raises:
            RowFaultError: A row cannot be in a batch.
        """


class Padding:
    """Brings the rows of a batch to one shape."""

    def __init__(self, shapes: PyTree = None, values: PyTree = 0):
        # `shapes` is a pytree as the rows, with a shape for each array; a dimension of None is as long as the longest
        # row of the batch. None: all are. `values` is what is added at the ends: one number, or a pytree of them.
        self._shapes, self._values = shapes, values

    def group(self, found: Sequence[tuple[Item, Any]]) -> Group:
        """Returns the batch of rows, with arrays of the same shapes."""
        items = [item for item, _ in found]
        first, treedef = jax.tree_util.tree_flatten_with_path(found[0][1])
        rows = [jax.tree.flatten(row) for _, row in found]
        for (_, structure), item in zip(rows, items, strict=True):
            if structure != treedef:  # type: ignore[operator]  # JAX types it too narrowly.
                raise RowFaultError(item, f"it has another structure, {structure}, than its batch, {treedef}")
        one_value = jax.tree_util.all_leaves([self._values])
        shapes = [None] * len(first) if self._shapes is None else _leaves(treedef, self._shapes, "shapes")
        values = [self._values] * len(first) if one_value else _leaves(treedef, self._values, "values")
        columns = zip(*(each for each, _ in rows), strict=True)
        names = [f"leaf {jax.tree_util.keystr(path)}" if path else "the row" for path, _ in first]
        padded = [_padded(items, *each) for each in zip(names, columns, shapes, values, strict=True)]
        return Group([jax.tree.unflatten(treedef, each) for each in zip(*padded, strict=True)], items)


def _leaves(treedef: Any, given: PyTree, name: str) -> list[Any]:
    try:
        found: list[Any] = treedef.flatten_up_to(given)
    except ValueError as error:
        raise ArgumentError(f"`{name}` is a pytree as the rows, {treedef}, got {given!r:.200} ({error}).") from None
    return found


def _padded(items: Sequence[Item], name: str, column: Sequence[Any], shape: Any, value: Any) -> list[Any]:
    arrays = [array_of_row(each) for each in column]
    given = (None,) * arrays[0].ndim if shape is None else _sizes(name, shape)
    for array, item in zip(arrays, items, strict=True):
        fits = array.ndim == len(given) and all(
            most is None or size <= most for size, most in zip(array.shape, given, strict=True)
        )
        if not fits:
            raise RowFaultError(item, f"{name} has shape {array.shape}, which does not fit into {list(given)}")
    fills = {dtype: _fill(name, value, dtype) for dtype in {array.dtype for array in arrays}}
    longest = [max(sizes) for sizes in zip(*(each.shape for each in arrays), strict=True)]
    wanted = tuple(most if size is None else size for size, most in zip(given, longest, strict=True))
    if all(each.shape == wanted for each in arrays):
        return list(column)
    filled = []
    for array in arrays:
        new = np.full(wanted, fills[array.dtype], object if array.dtype.kind in "OSU" else array.dtype)
        new[tuple(map(slice, array.shape))] = array
        filled.append(new)
    return filled


def _sizes(name: str, shape: Any) -> tuple[int | None, ...]:
    """Returns the sizes of a shape that the user has given; None for those that depend on the batch."""
    try:
        sizes = tuple(shape)
    except TypeError:
        sizes = ("",)
    if not all(size is None or (is_int(size) and size >= -1) for size in sizes):
        raise ArgumentError(f"`shapes`: the shape of {name} is a sequence of ints and None, got {shape!r:.100}.")
    return tuple(None if size in (None, -1) else int(size) for size in sizes)


def _fill(name: str, value: Any, dtype: np.dtype) -> Any:
    """Returns what an array is padded with: a value that its dtype holds; only floats may be rounded, as in rows."""
    if dtype.kind in "OSU":
        return value if isinstance(value, (bytes, str)) else b""
    given = np.asarray(value)
    if given.ndim or not (jnp.issubdtype(given.dtype, np.number) or given.dtype.kind in "bO"):
        raise ArgumentError(f"`values`: {name} is padded with one number, got {value!r:.100}.")
    may_round = jnp.issubdtype(given.dtype, np.inexact) and jnp.issubdtype(dtype, np.inexact)
    try:
        with np.errstate(all="ignore"):
            made = given.astype(dtype, casting="unsafe" if np.isrealobj(given) else "same_kind")
        holds = bool(np.isfinite(made)) == bool(np.isfinite(given)) if may_round else made.item() == given.item()
    except (TypeError, ValueError, OverflowError):
        holds = False
    if not holds:
        raise ArgumentError(
            f"`values`: {name} is of dtype {dtype}, which cannot hold {value!r:.100}. Give another value, or let a "
            "`map` give the leaf another dtype."
        )
    return made


class RowsByLength:
    """Batches of rows of about one length: those between two boundaries."""

    def __init__(
        self,
        length: Callable[[Any], int],  # of a row; not called without boundaries
        boundaries: Sequence[int],  # ascending: a row of a boundary's length is in the bucket above it
        sizes: Sequence[int],  # rows of a batch of each bucket: one more than boundaries
        padding: Padding,
        drops: bool,  # whether the rows that are left at the end, too few for a batch, are left out
    ):
        self._boundaries = [checked_int("boundaries", each, least=1) for each in boundaries]
        self.sizes = [checked_int("batch_sizes", each, least=1) for each in sizes]
        if len(self.sizes) != len(self._boundaries) + 1:
            raise ArgumentError(
                f"`batch_sizes` has one number more than `boundaries`: {len(self._boundaries) + 1}, got "
                f"{len(self.sizes)}."
            )
        if sorted(set(self._boundaries)) != self._boundaries:
            raise ArgumentError(f"`boundaries` are ascending, got {boundaries!r}.")
        self._length, self._padding, self._drops = length, padding, drops

    def groups(self, rows: RowStream) -> Iterator[Group]:
        """Yields the rows of one batch after the other; what is left at the end by bucket, the shortest first."""
        waiting: dict[int, list[tuple[Item, Any]]] = {}
        for item, row in rows:
            bucket = bisect.bisect_right(self._boundaries, self._length_of(item, row)) if self._boundaries else 0
            found = waiting.setdefault(bucket, [])
            found.append((item, row))
            if len(found) == self.sizes[bucket]:
                yield self._padding.group(waiting.pop(bucket))
        for bucket in sorted(waiting) if not self._drops else ():
            yield self._padding.group(waiting[bucket])

    def _length_of(self, item: Item, row: Any) -> float:
        try:
            found = self._length(row)
        except MemoryError:
            raise
        except Exception as error:
            raise RowFaultError(item, f"`length` raised {type(error).__name__}: {error}") from error
        number = np.asarray(found)
        if number.ndim or number.dtype.kind not in "iuf" or not 0 <= number < math.inf:
            raise RowFaultError(
                item, f"`length` returns the length of a row, a number of at least 0, not {found!r:.100}"
            )
        return float(number)


class PackedRows:
    """Batches of `size` packed rows, each of several rows: by Grain's first-fit packing.

    All packed rows of a batch are filled at a time. The first row that fits into none of them begins the next batch, so
    the rows of a batch come one after the other in the source.
    """

    def __init__(self, size: int, lengths: Mapping[str, int]):
        if not isinstance(lengths, Mapping) or not lengths or not all(isinstance(each, str) for each in lengths):
            raise ArgumentError(f"`lengths` has for each feature the length of a packed row, got {lengths!r:.100}.")
        self._size = size
        self._lengths = {name: checked_int(f"lengths[{name!r}]", each, least=1) for name, each in lengths.items()}
        self._grain: Any = needed("grain", "rx.data.Rows.packed_batch")

    def groups(self, rows: RowStream) -> Iterator[Group]:
        """Yields the rows of one batch after the other."""
        items: list[Item] = []  # that are in no batch yet
        ended = False
        first: dict[str, np.ndarray] = {}

        def features() -> Iterator[dict[str, np.ndarray]]:
            nonlocal ended
            for item, row in rows:
                found = self._features(item, row, first)
                if not first:
                    first.update(found)
                items.append(item)
                yield found
            ended = True

        packing = self._grain.experimental.FirstFitPackIterDataset(
            _streamed(self._grain, features()),
            length_struct=self._lengths,
            num_packing_bins=self._size,
            shuffle_bins=False,
        )
        made: list[dict[str, np.ndarray]] = []
        used: list[Item] = []
        for packed in packing:
            if not made:  # All of the batch are made with the first. The row that did not fit is of the next batch.
                count = len(items) if ended else len(items) - 1
                used, items[:] = items[:count], items[count:]
            made.append(packed)
            if len(made) == self._size:
                yield Group(made, used)
                made = []
        if made:
            yield Group(made, used)

    def _features(self, item: Item, row: Any, first: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns what is packed of a row, like `first`, the first row's: Grain casts all rows to the dtype of one."""
        if not isinstance(row, Mapping) or not self._lengths.keys() <= row.keys():
            raise RowFaultError(item, f"rows that are packed are dicts with {list(self._lengths)}, got {row!r:.100}")
        found = {}
        for name, length in self._lengths.items():
            try:
                array = array_of_row(row[name])
            except (TypeError, ValueError) as error:
                raise RowFaultError(item, f"{name!r} cannot become an array: {error}") from error
            if not array.ndim or len(array) > length:
                raise RowFaultError(
                    item,
                    f"{name!r} has shape {array.shape}, and a packed row {length} of it: cut the row in a `map`, or "
                    "leave it out in a `filter`",
                )
            other = first.get(name, array)
            if not array.size and array.shape[1:] == other.shape[1:]:
                array = array.astype(other.dtype)  # An empty list is of floats.
            if (array.dtype, array.shape[1:]) != (other.dtype, other.shape[1:]):
                raise RowFaultError(
                    item,
                    f"{name!r} is of dtype {array.dtype} and shape {array.shape}, and in the first row of this pass of "
                    f"{other.dtype} and {other.shape}. Rows that are packed differ in their lengths only: let a `map` "
                    "give them one dtype and one shape behind the first dimension",
                )
            found[name] = array
        return found


def _streamed(grain: Any, elements: Iterator[Any]) -> Any:
    """Returns elements that are there once as a dataset of Grain's."""

    class Stream(grain.DatasetIterator):
        def __next__(self) -> Any:
            return next(elements)

        def get_state(self) -> dict[str, Any]:
            return {}  # The position is kept elsewhere.

        def set_state(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    class Streamed(grain.IterDataset):
        def __iter__(self) -> Any:
            return Stream()

    return Streamed()
