"""Arrays in files that are larger than memory: NumPy's files, and files of tokens."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax.checks import checked_int
from replicax.data.batch_placement import aligned
from replicax.data.readers.files import Cache, Paths, is_url, listed
from replicax.data.readers.indexed import Parts
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, DataError
from replicax.typing import PyTree

_INT32 = np.dtype(np.int32)


def read_numpy(files: PyTree, *, cache: Cache | None = None) -> Rows:
    """Returns the rows of arrays in `.npy` files, which may be larger than memory: they are mapped, and not loaded.

    Args:
        files: A pytree whose leaves are the files of one array each: a path or a pattern (its files in the order of
            their names), such as `{"x": "x-*.npy", "y": "y-*.npy"}`. Rows are their first dimension. Urls need a
            `cache`.
        cache: Where copies of files from buckets are kept, all of them.

    Raises:
        ArgumentError: No file matches, or the arrays have different numbers of rows.
        DataError: A file is gone, or no array.

    Example:
        >>> import tempfile
        >>> np.save(name := tempfile.mkdtemp() + "/x.npy", np.arange(6).reshape(3, 2))
        >>> rx.data.read_numpy({"x": name}).batch(2).first()["x"].tolist()
        [[0, 1], [2, 3]]
    """
    return Rows(_Arrays(files, cache))


class _Arrays:
    """Rows of mapped arrays."""

    lasts = True

    def __init__(self, files: PyTree, cache: Cache | None):
        self._given = files, cache
        leaves, self._structure = jax.tree.flatten(files, is_leaf=lambda node: isinstance(node, list))
        self._columns = [_Column(leaf, cache) for leaf in leaves]
        rows = {len(column.parts) for column in self._columns}
        if len(rows) != 1:
            raise ArgumentError(
                "The arrays have the same number of rows, got "
                + ", ".join(f"{len(column.parts)} in {column.names[0]}" for column in self._columns)
                + "."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given  # Not what the files hold.

    def __len__(self) -> int:
        return len(self._columns[0].parts)

    def __getitem__(self, index: int) -> PyTree:
        return jax.tree.map(lambda leaf: leaf[0], self.rows_at(np.array([index])))

    def rows_at(self, indices: np.ndarray) -> PyTree:
        return jax.tree.unflatten(self._structure, [column.rows_at(indices) for column in self._columns])

    def name_of(self, index: int) -> tuple[str, int]:
        part, number = self._columns[0].parts.find(index)
        return self._columns[0].names[part], number


class _Column:
    """One array, in one file or several."""

    def __init__(self, files: Paths, cache: Cache | None):
        self.names = listed(files)
        self._arrays = [_mapped(name, cache) for name in self.names]
        kinds = {(array.dtype, array.shape[1:]) for array in self._arrays}
        if len(kinds) > 1 or not self._arrays[0].ndim:
            raise ArgumentError(
                f"The files of an array have rows of one shape and dtype, got {kinds} in {files!r:.100}."
            )
        self.parts = Parts([len(array) for array in self._arrays])

    def rows_at(self, indices: np.ndarray) -> np.ndarray:
        found = aligned((len(indices), *self._arrays[0].shape[1:]), self._arrays[0].dtype)
        if len(self._arrays) == 1:
            return self._arrays[0].take(indices, axis=0, out=found, mode="clip")  # No index is outside.
        for part, places, numbers in self.parts.split(indices):
            found[places] = self._arrays[part][numbers]
        return found


def _mapped(name: str, cache: Cache | None) -> np.ndarray:
    local = _local(name, cache)
    try:
        array: np.ndarray = np.load(local, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # A damaged head lets NumPy's parser raise many kinds.
        raise DataError.of(error, name) from error
    return array.view(np.ndarray)  # A class of its own makes each operation slower.


def _local(name: str, cache: Cache | None) -> str:
    local = name if cache is None else cache.local(name)
    if is_url(local):
        raise ArgumentError(
            f"A file is mapped on this machine, got {name}. Give cache=rx.data.Cache(...) with a bound."
        )
    return local


def read_tokens(
    files: Paths,
    length: int,
    *,
    dtype: Any = "uint16",
    stride: int | None = None,
    header_bytes: int = 0,
    cache: Cache | None = None,
) -> Rows:
    """Returns windows of tokens in files, which are mapped and not loaded: pairs of a window and the one a token later.

    Args:
        files: A path or a pattern (its files in the order of their names), of `.npy` files of one dimension or of files
            that are tokens and nothing else. Urls need a `cache`.
        length: Tokens of a window.
        dtype: Of the tokens in a file that is no `.npy`.
        stride: From one window to the next; None for `length`: then each token is predicted once. The last tokens of a
            file, too few for a window, are left out.
        header_bytes: At the beginning of a file that is no `.npy`, before the tokens.
        cache: Where copies of files from buckets are kept, all of them.

    Returns:
        Rows that are pairs `(x, y)` of int32 arrays of shape `(length,)`; `y` is what follows each token of `x`.

    Raises:
        ArgumentError: No file matches, an argument has another form, or no file has a window.
        DataError: A file is gone, or has another form.

    Example:
        >>> import tempfile
        >>> np.arange(9, dtype="uint16").tofile(name := tempfile.mkdtemp() + "/tokens.bin")
        >>> x, y = rx.data.read_tokens(name, 4).batch(2).first()
        >>> x.tolist(), y.tolist()
        ([[0, 1, 2, 3], [4, 5, 6, 7]], [[1, 2, 3, 4], [5, 6, 7, 8]])
    """
    return Rows(_Windows(listed(files), length, np.dtype(dtype), stride, header_bytes, cache))


class _Windows:
    """Windows of mapped tokens."""

    lasts = True

    def __init__(
        self, names: list[str], length: int, dtype: np.dtype, stride: int | None, header: int, cache: Cache | None
    ):
        self._given = names, length, dtype, stride, header, cache
        self._length = checked_int("length", length, least=1)
        self._stride = self._length if stride is None else checked_int("stride", stride, least=1)
        checked_int("header_bytes", header)
        if dtype.kind not in "iu":
            raise ArgumentError(f"`dtype` is a dtype of integers, got {dtype}.")
        self._names = names
        self._tokens = [_tokens(name, dtype, header, cache) for name in names]
        self._windows = [_windows(tokens, self._length + 1, self._stride) for tokens in self._tokens]
        self._parts = Parts([len(windows) for windows in self._windows])
        if not len(self._parts):
            raise ArgumentError(
                f"No file has a window of {length} tokens and the one after it; they have "
                f"{[len(each) for each in self._tokens][:10]}."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given  # Not what the files hold.

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.rows_at(np.array([index]))
        return x[0], y[0]

    def _read(self, part: int, numbers: np.ndarray) -> np.ndarray:
        windows = self._windows[part][numbers]
        if windows.dtype.itemsize >= _INT32.itemsize and windows.dtype != _INT32:
            largest, limit = max(abs(int(windows.max())), abs(int(windows.min()))), np.iinfo(_INT32).max
            if largest > limit:
                raise DataError(f"a token is {largest}, and tokens are int32, at most {limit}.", self._names[part])
        return windows

    def rows_at(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = (aligned((len(indices), self._length), _INT32) for _ in range(2))
        for part, places, numbers in self._parts.split(indices):
            windows = self._read(part, numbers)
            x[places], y[places] = windows[:, :-1], windows[:, 1:]
        return x, y

    def name_of(self, index: int) -> tuple[str, int]:
        part, number = self._parts.find(index)
        return self._names[part], number


def _windows(tokens: np.ndarray, size: int, stride: int) -> np.ndarray:
    """Returns the windows of tokens, of shape `(windows, size)`: a view."""
    if len(tokens) < size:
        return np.empty((0, size), tokens.dtype)
    return np.lib.stride_tricks.sliding_window_view(tokens, size)[::stride]


def _tokens(name: str, dtype: np.dtype, header: int, cache: Cache | None) -> np.ndarray:
    if name.endswith(".npy"):
        array = _mapped(name, cache)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(f"tokens are integers in one dimension, got {array.dtype} of shape {array.shape}.", name)
        return array
    local = _local(name, cache)
    try:
        tokens: np.ndarray = np.memmap(local, dtype, "r", offset=header)
    except (OSError, ValueError) as error:
        raise DataError.of(error, name) from error
    return tokens
