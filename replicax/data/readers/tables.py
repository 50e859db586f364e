"""Tables in files: Parquet and CSV by Arrow, and lines of JSON."""

from __future__ import annotations

import abc
import contextlib
import json
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from replicax.data.extras import needed
from replicax.data.readers.files import Cache, Paths, listed, opened
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, DataError

_ROWS_AT_A_TIME = 4096
_FILES_AT_A_TIME = 16


class _Cell(NamedTuple):
    """A row of a block of columns."""

    columns: dict[str, np.ndarray]
    row: int


class _Columns(abc.ABC):
    """Rows that come in blocks of columns."""

    files: Sequence[str]
    lasts = True  # Arrow never writes to its memory again.

    @abc.abstractmethod
    def blocks(self, file: int, first: int) -> Generator[dict[str, np.ndarray]]:
        """Yields the rows of a file from number `first` on, by blocks."""

    def read(self, file: int, first: int) -> Iterator[_Cell]:
        """Yields the rows of a file from number `first` on."""
        with contextlib.closing(self.blocks(file, first)) as blocks:
            for columns in blocks:
                for row in range(len(next(iter(columns.values())))):
                    yield _Cell(columns, row)

    def row_of(self, cell: _Cell) -> dict[str, Any]:
        return {name: column[cell.row] for name, column in cell.columns.items()}

    def rows_at(self, cells: Sequence[_Cell]) -> dict[str, np.ndarray]:
        blocks: dict[int, list[int]] = {}
        for place, cell in enumerate(cells):
            blocks.setdefault(id(cell.columns), []).append(place)
        if len(blocks) == 1:
            at = np.array([cell.row for cell in cells])
            return {name: _plain(name, column)[at] for name, column in cells[0].columns.items()}
        found: dict[str, np.ndarray] = {}
        for places in blocks.values():
            at = np.array([cells[place].row for place in places])
            for name, column in cells[places[0]].columns.items():
                part = _plain(name, column)[at]
                if name not in found:
                    found[name] = np.empty((len(cells), *part.shape[1:]), part.dtype)
                if found[name].dtype != part.dtype or found[name].shape[1:] != part.shape[1:]:
                    raise ValueError("The blocks differ: their rows are made one by one.")
                found[name][places] = part
        return found


def _plain(name: str, column: np.ndarray) -> np.ndarray:
    if column.dtype == object:
        raise ValueError(f"{name} has rows of different kinds: they are made one by one.")
    return column


def _arrays(table: Any) -> dict[str, np.ndarray]:
    """Returns the columns of a block of Arrow's: lists of one length are arrays of two dimensions."""
    return {name: _array(table.column(name)) for name in table.schema.names}


def _array(column: Any) -> np.ndarray:
    pa = needed("pyarrow", "rx.data")
    kind = column.type
    if pa.types.is_fixed_size_list(kind) and not column.null_count:
        return _array(column.flatten()).reshape(len(column), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        if not column.null_count and len(lengths) and (lengths == lengths[0]).all():
            return _array(column.flatten()).reshape(len(column), int(lengths[0]))
    if column.null_count and pa.types.is_integer(kind):  # Arrow would make floats of them.
        given: np.ndarray = column.fill_null(0).to_numpy(zero_copy_only=False)
        with_none = np.empty(len(column), object)
        with_none[:] = list(given)
        with_none[column.is_null().to_numpy(zero_copy_only=False)] = None
        return with_none
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _checked_columns(columns: Sequence[str] | None) -> list[str] | None:
    if columns is None:
        return None
    names = [] if isinstance(columns, str) or not isinstance(columns, Sequence) else list(columns)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ArgumentError(f"`columns` is a list of different names, at least one, got {columns!r:.100}.")
    return names


class _Parquet(_Columns):
    """The row groups of Parquet files: each is read from its beginning."""

    def __init__(self, files: list[str], columns: Sequence[str] | None, cache: Cache | None):
        self._pq: Any = needed("pyarrow.parquet", "rx.data.read_parquet")
        self._columns, self._cache = _checked_columns(columns), cache
        with ThreadPoolExecutor(_FILES_AT_A_TIME) as pool:  # Buckets answer slowly.
            found = list(pool.map(self._row_groups, files))
        self._groups = [
            (name, group, sizes) for name, sizes in zip(files, found, strict=True) for group in range(len(sizes))
        ]
        self.files = [f"{name} (row group {group})" for name, group, _ in self._groups]

    def _row_groups(self, name: str) -> tuple[tuple[int, int], ...]:
        """Returns the rows and the bytes of each row group of a file."""
        with self._opened(name) as parquet:
            absent = set(self._columns or ()) - set(parquet.schema_arrow.names)
            if absent:
                raise DataError(
                    f"there is no such column; it has {parquet.schema_arrow.names}.", name, None, min(absent)
                )
            return _sizes(parquet)

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        try:
            with opened(name, self._cache) as stream, self._pq.ParquetFile(stream) as parquet:
                yield parquet
        except DataError:
            raise
        except Exception as error:
            raise DataError.of(error, name) from error

    def blocks(self, file: int, first: int) -> Generator[dict[str, np.ndarray]]:
        name, group, sizes = self._groups[file]
        with self._opened(name) as parquet:
            if _sizes(parquet) != sizes:
                raise DataError("it has other row groups than when it was opened: it has been written anew.", name)
            for block in parquet.iter_batches(_ROWS_AT_A_TIME, row_groups=[group], columns=self._columns):
                if first >= block.num_rows:
                    first -= block.num_rows
                    continue
                yield _arrays(block.slice(first))
                first = 0


def _sizes(parquet: Any) -> tuple[tuple[int, int], ...]:
    groups = (parquet.metadata.row_group(number) for number in range(parquet.num_row_groups))
    return tuple((group.num_rows, group.total_byte_size) for group in groups)


def read_parquet(files: Paths, columns: Sequence[str] | None = None, *, cache: Cache | None = None) -> Rows:
    """Returns the rows of Parquet files, as dicts of their columns. Row groups are dealt to workers as files are.

    Args:
        files: A path, a pattern (its files in the order of their names), a url, or a list of them.
        columns: Their names; None for all. Texts and lists of different lengths need a `map` that makes arrays, and so
            do integers with nulls, which are None; nulls of floats are NaN.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: No file matches, or a package is missing.
        DataError: A file is gone or damaged, or lacks a column.

    Example:
        >>> rows = rx.data.read_parquet("part-*.parquet", ["features", "label"])  # doctest: +SKIP
        >>> dataset = strategy.distribute_dataset(rows.shuffle(seed=1).batch(256))  # doctest: +SKIP
    """
    return Rows(_Parquet(listed(files), columns, cache))


#: By the end of a file's name, as pyarrow calls it.
_CODECS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd"}


class _CSV(_Columns):
    """The rows of CSV files."""

    def __init__(self, files: list[str], columns: Sequence[str] | None, delimiter: str, cache: Cache | None):
        if not isinstance(delimiter, str) or len(delimiter) != 1:
            raise ArgumentError(f"`delimiter` is one character, got {delimiter!r}.")
        self.files, self._columns, self._delimiter, self._cache = files, _checked_columns(columns), delimiter, cache
        self._csv: Any = needed("pyarrow.csv", "rx.data.read_csv")

    def blocks(self, file: int, first: int) -> Generator[dict[str, np.ndarray]]:
        name = self.files[file]
        with opened(name, self._cache) as stream:
            codec = _CODECS.get(name.rpartition(".")[2])
            blocks = self._csv.open_csv(
                stream if codec is None else needed("pyarrow", "rx.data.read_csv").CompressedInputStream(stream, codec),
                parse_options=self._csv.ParseOptions(delimiter=self._delimiter),
                convert_options=self._csv.ConvertOptions(include_columns=self._columns),
            )
            for block in blocks:
                if first >= block.num_rows:
                    first -= block.num_rows
                    continue
                yield _arrays(block.slice(first))
                first = 0


def read_csv(
    files: Paths, columns: Sequence[str] | None = None, *, delimiter: str = ",", cache: Cache | None = None
) -> Rows:
    """Returns the rows of CSV files with a head line, as dicts of their columns: numbers, or texts.

    Args:
        files: A path, a pattern (its files in the order of their names), a url, or a list of them. They may be
            compressed as `.gz`, `.bz2` or `.zst`.
        columns: Their names; None for all. Integers that are missing are None, and need a `map`; floats are NaN.
        delimiter: What is between the fields.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: No file matches, or a package is missing.
        DataError: While iterating: a file is gone, lacks a column, or has a line with another number of fields.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "people.csv")
        >>> _ = file.write_text("name,age\\nAda,36\\nAlan,41\\n")
        >>> rx.data.read_csv(file, ["age"]).batch(2).first()
        {'age': array([36, 41])}
    """
    return Rows(_CSV(listed(files), columns, delimiter, cache))


class _JSONLines:
    """The lines of files."""

    def __init__(self, files: list[str], cache: Cache | None):
        self.files, self._cache = files, cache

    def read(self, file: int, first: int) -> Iterator[bytes]:
        """Yields the lines of a file from number `first` on; empty ones do not count."""
        with opened(self.files[file], self._cache) as raw:
            number = 0
            for line in _decompressed(raw, self.files[file]):
                if line.strip():
                    if number >= first:
                        yield line
                    number += 1

    def row_of(self, line: bytes) -> Any:
        try:
            value = json.loads(line)
        except ValueError as error:
            raise DataError(f"the line is no JSON ({error}): {line!r:.80}") from error
        return _with_arrays(value)


def _with_arrays(value: Any) -> Any:
    """Returns a value of JSON's with arrays in the place of lists of numbers."""
    if isinstance(value, dict):
        return {name: _with_arrays(each) for name, each in value.items()}
    if isinstance(value, list):
        try:
            array = np.asarray(value)
        except ValueError:  # Lists of different lengths.
            return value
        if array.dtype.kind == "f" and _are_integers(value):
            raise DataError(f"integers that no dtype holds together: {value!r:.80}")
        return array if array.dtype.kind in "biuf" and array.size else value
    return value


def _are_integers(value: list[Any]) -> bool:
    return all(_are_integers(each) if isinstance(each, list) else isinstance(each, int) for each in value)


def _decompressed(raw: Any, name: str) -> Any:
    if name.endswith(".gz"):
        import gzip

        return gzip.GzipFile(fileobj=raw)
    return raw


def read_json_lines(files: Paths, *, cache: Cache | None = None) -> Rows:
    """Returns the lines of JSON files (`.jsonl`), as the dicts and numbers that they hold; lists of numbers are arrays.

    Args:
        files: A path, a pattern (its files in the order of their names), a url, or a list of them; plain or `.gz`.
        cache: Where copies of files from buckets are kept.

    Raises:
        ArgumentError: No file matches.
        DataError: While iterating: a file is gone, or a line is no JSON.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "chats.jsonl")
        >>> _ = file.write_text('{"words": 3}\\n{"words": 5}\\n')
        >>> rx.data.read_json_lines(file).batch(2).first()
        {'words': array([3, 5])}
    """
    return Rows(_JSONLines(listed(files), cache))
