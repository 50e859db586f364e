"""Sources: whatever a user has, as an iterable of host batches that are checked one by one."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

import jax

from replicax.data.batches import check_signature, count_rows, host_batch, is_array, signature
from replicax.errors import ArgumentError, BatchError


class HostBatches(Iterable[Any]):
    """The batches of a source, as nests of NumPy arrays.

    Each pass opens the source anew and checks every batch (see `batches.py`). Arrays may share the source's memory:
    they hold their values only until the next batch is asked for.

    Attributes:
        name: What the source is, for messages.
        one_shot: Whether the source is an iterator, which can be passed over once only.
        last_rows: Number of rows of the last batch, where that is known.
    """

    def __init__(
        self,
        open_source: Callable[[], Iterator[Any]],
        name: str,
        *,
        length: Callable[[], int] | None = None,
        one_shot: bool = False,
        last_rows: int | None = None,
    ):
        self.name = name
        self.one_shot = one_shot
        self.last_rows = last_rows
        self._open_pass = open_source
        self._length = length
        self._used = False

    @contextlib.contextmanager
    def open_source(self) -> Generator[Iterator[Any]]:
        """Opens the source for a pass; gives what it yields, unchecked, so that it need not be batches.

        At the end of the block the source is closed, unless it is an iterator: one that the user made is the user's to
        close.

        Raises:
            BatchError: The source is an iterator, and this is the second pass.
        """
        if self._used and self.one_shot:
            raise BatchError(
                f"The dataset is an iterator ({self.name}) and can be passed over once only; this is the second pass. "
                "Give something that starts anew each time: a list, a dataset, or a function that returns an iterator."
            )
        self._used = True
        opened = self._open_pass()
        try:
            yield opened
        finally:
            close = getattr(opened, "close", None)
            if close is not None and not self.one_shot:
                close()

    def __iter__(self) -> Generator[Any]:
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
    """The batches of a nest of arrays: views.

    Attributes:
        arrays: The arrays.
        size: Rows of a batch; the last may have fewer.
    """

    def __init__(self, arrays: Any, size: int):
        self.arrays, self.size = arrays, size
        rows = count_rows(arrays)
        last_rows = rows % size or size
        super().__init__(self.after, "arrays", length=lambda: -(-rows // size), last_rows=last_rows)

    def after(self, rows: int = 0) -> Iterator[Any]:
        """Yields the batches that begin with row number `rows`."""
        for start in range(rows, count_rows(self.arrays), self.size):
            yield jax.tree.map(lambda leaf: leaf[start : start + self.size], self.arrays)  # noqa: B023 - used at once


def host_batches(source: Any, batch_size: int | None = None) -> HostBatches:
    """Returns the batches of `source`.

    Args:
        source: With `batch_size`, a nest (array, tuple, dict, any pytree but a list) of arrays: the first dimension of
            every leaf is the rows, which come in order, `batch_size` at a time; the last batch may have fewer.
            Without, anything that yields batches: a list, a generator, a Grain dataset or `DataLoader`, a torch
            `DataLoader`, a `tf.data.Dataset`, an object with `__len__` and `__getitem__`, or a function without
            arguments that returns one of these.
        batch_size: Rows per batch.

    Raises:
        ArgumentError: `batch_size` is missing for arrays or given for batches, or `source` is none of those.
        BatchError: The arrays disagree in their number of rows, have none, or cannot be split.
    """
    if batch_size is not None:
        return _array_batches(source, batch_size)
    name = type(source).__name__
    _check_yields_batches(source)
    if _is_function(source):
        _check_takes_no_argument(source)
        return HostBatches(lambda: _open_made(source), f"{name} {getattr(source, '__name__', '')}".strip())
    if not _can_open(source):
        raise ArgumentError(
            f"Cannot read batches from a {name}: {source!r:.80}. Give an iterable of batches, a Grain dataset, a torch "
            "DataLoader, a tf.data.Dataset, a function that returns one of these, or arrays with `batch_size`."
        )
    length = (lambda: len(source)) if hasattr(type(source), "__len__") else None
    return HostBatches(lambda: _open(source), name, length=length, one_shot=isinstance(source, Iterator))


def check_batch_size(batch_size: Any, name: str = "batch_size") -> int:
    """Returns the number of rows of a global batch as an int.

    Args:
        batch_size: The number; anything that can be an index.
        name: What the argument is called, for the message.

    Raises:
        ArgumentError: It is not a positive int.
    """
    try:
        size = -1 if isinstance(batch_size, bool) else operator.index(batch_size)
    except TypeError:
        size = -1
    if size < 1:
        raise ArgumentError(f"`{name}` is the number of rows of a global batch, at least 1, got {batch_size!r}.")
    return size


def is_nest(source: Any) -> bool:
    """Returns whether `source` is data itself, not something that yields it.

    A list is not: it is a list of batches, or of elements.
    """
    if source is None or isinstance(source, list):
        return False
    return is_array(source) or not jax.tree_util.all_leaves([source])


def _array_batches(source: Any, batch_size: int) -> HostBatches:
    size = check_batch_size(batch_size)
    if not is_nest(source):
        raise ArgumentError(
            f"`batch_size` is for arrays (an array, tuple, dict or other nest of them), but a {type(source).__name__} "
            "already yields batches: leave `batch_size` out. (A list is a list of batches; write a nest as a tuple.)"
        )
    return ArrayBatches(host_batch(source, "The dataset"), size)


def _check_yields_batches(source: Any) -> None:
    if is_nest(source):
        raise ArgumentError(
            f"The dataset is one {type(source).__name__}, not batches of it: pass batch_size=..., the number of rows "
            "in a global batch. (If it is a collection of batches, make it a list.)"
        )


def _is_function(source: Any) -> bool:
    return callable(source) and not _can_open(source)


def _check_takes_no_argument(function: Callable[..., Any]) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise ArgumentError(
            f"A function given as a dataset is called without arguments, but {function!r} needs some ({error}). For a "
            "function of an InputContext there is `strategy.distribute_datasets_from_function`."
        ) from None
    except ValueError:
        pass  # Built-in callables without a signature: calling will tell.


def _can_open(source: Any) -> bool:
    kind = type(source)
    has_items = hasattr(kind, "__getitem__") and hasattr(kind, "__len__")
    return hasattr(source, "as_numpy_iterator") or hasattr(kind, "__iter__") or has_items


def _open(source: Any) -> Iterator[Any]:
    if hasattr(source, "as_numpy_iterator"):  # tf.data
        return iter(source.as_numpy_iterator())
    if hasattr(type(source), "__iter__"):
        return iter(source)
    return (source[index] for index in range(len(source)))


def _open_made(function: Callable[[], Any]) -> Iterator[Any]:
    made = function()
    if is_nest(made):
        raise ArgumentError(
            f"The dataset function {function!r} returned one {type(made).__name__}, not batches of it: let it yield "
            "batches, or pass the arrays themselves and batch_size=..., the number of rows in a global batch. (If it "
            "is a collection of batches, return a list.)"
        )
    if not _can_open(made):
        raise ArgumentError(f"The dataset function {function!r} returned a {type(made).__name__}, not batches.")
    return _open(made)
