"""ArrayRecord files: any record can be read by its number."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from replicax.data.extras import needed
from replicax.data.readers.examples import ExampleParser
from replicax.data.readers.files import Cache, Paths, is_url, listed
from replicax.data.readers.indexed import Parts
from replicax.data.rows import Rows
from replicax.errors import ArgumentError, DataError


def read_array_record(files: Paths, features: Mapping[str, Any] | None = None, *, cache: Cache | None = None) -> Rows:
    """Returns the records of ArrayRecord files, which `shuffle` shuffles as a whole.

    Args:
        files: A path, a pattern (its files in the order of their names), or a list of them. Urls need a `cache`: the
            library reads files on this machine.
        features: What each record has, as `parse_example` takes it: the rows are dicts of arrays. None for rows that
            are bytes.
        cache: Where copies of files from buckets are kept, all of them.

    Raises:
        ArgumentError: No file matches, or a package is missing.
        DataError: A file is gone or damaged.

    Example:
        >>> rows = rx.data.read_array_record("train-*.array_record")  # doctest: +SKIP
        >>> dataset = strategy.distribute_dataset(rows.map(decode).shuffle(seed=1).batch(256))  # doctest: +SKIP
    """
    rows = Rows(_ArrayRecords(listed(files), cache))
    return rows if features is None else rows.map(ExampleParser(features))


class _ArrayRecords:
    """The records of files, as bytes."""

    def __init__(self, files: list[str], cache: Cache | None):
        sources = needed("grain.sources", "rx.data.read_array_record")
        self._files = files
        self._sources, sizes = [], []
        for name in files:
            local = name if cache is None else cache.local(name)
            if is_url(local):
                raise ArgumentError(
                    f"ArrayRecord files are read on this machine, got {name}. Give cache=rx.data.Cache(...) with a "
                    "bound for all of them."
                )
            if not Path(local).is_file():  # The library would end the process.
                raise DataError("there is no such file.", name)
            try:
                self._sources.append(sources.ArrayRecordDataSource([local]))
                sizes.append(len(self._sources[-1]))
            except Exception as error:
                raise DataError.of(error, name) from error
        self._parts = Parts(sizes)

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: int) -> bytes:
        part, number = self._parts.find(index)
        record: bytes = self._sources[part][number]
        return record

    def name_of(self, index: int) -> tuple[str, int]:
        part, number = self._parts.find(index)
        return self._files[part], number

    def __repr__(self) -> str:
        return f"{len(self._files)} ArrayRecord files"
