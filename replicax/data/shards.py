"""Shards: the parts of a dataset that workers read independently of each other, such as files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Protocol

from replicax.data.batches import check_signature, count_rows, signature
from replicax.data.position import Position
from replicax.data.rebatching import ShardBatch, skip_rows
from replicax.data.sources import HostBatches, host_batches
from replicax.errors import ArgumentError
from replicax.typing import PyTree


class Shards(Protocol):
    """The shards of a dataset."""

    count: int
    fixed: bool  # whether shard w exists on worker w only

    def open(self, shard: int) -> Generator[PyTree]:
        """Yields the checked batches of a shard, of any sizes."""


class WorkerShards:
    """One shard per worker: what each worker has made for itself."""

    fixed = True

    def __init__(self, batches: HostBatches, workers: int):
        self.count = workers
        self._batches = batches

    def open(self, shard: int) -> Generator[PyTree]:
        del shard  # It is this worker's own: no worker opens another one.
        return iter(self._batches)


class HintShards:
    """The shards of a dataset that can shard itself; any worker can make any of them."""

    fixed = False

    def __init__(self, source: PyTree, count: int):
        self.count = count
        self._source = source

    def open(self, shard: int) -> Generator[PyTree]:
        shard_of: Callable[[int, int], PyTree] | None = getattr(self._source, "shard", None)
        if self.count == 1:
            made = self._source
        elif callable(shard_of):
            made = shard_of(self.count, shard)
        else:
            made = self._source[shard :: self.count]
        return iter(host_batches(lambda: made))


def takes_a_hint(source: PyTree) -> bool:
    """Returns whether `HintShards` can shard `source`: by its own method, or by a slice as Grain's `MapDataset`."""
    return callable(getattr(source, "shard", None)) or type(source).__module__.partition(".")[0] == "grain"


class ShardReader(Iterable[ShardBatch]):
    """Reads shards one after the other, and yields their batches without the rows before a position."""

    def __init__(self, shards: Shards, mine: Iterable[int], position: Position):
        self.first_rows = 0  # of the first batch that the source gave; 0 as long as it has given none
        self._shards, self._mine, self._position = shards, mine, position

    def __iter__(self) -> Generator[ShardBatch]:
        expected, index = None, 0
        for shard in self._mine:
            with contextlib.closing(self._shards.open(shard)) as batches:
                for batch in skip_rows(self._noticed(batches), self._position.skipped(shard)):
                    found = signature(batch)
                    expected = expected or found
                    check_signature(index, found, expected)
                    index += 1
                    yield ShardBatch(shard, batch)

    def _noticed(self, batches: Iterable[PyTree]) -> Generator[PyTree]:
        for batch in batches:
            self.first_rows = self.first_rows or count_rows(batch)
            yield batch


def shards_of_worker(shards: Shards, position: Position, worker: int, workers: int) -> list[int]:
    """Returns the indices of the shards that a worker reads, of those that have not been read to their end."""
    if position.rows and position.shards != shards.count:
        hint = (
            "Each worker's own data can only go on with the same number of workers; use an rx.data.FileSource, or data "
            "that all workers read alike."
            if shards.fixed
            else "Give the same files, in the same order, and the same `auto_shard_policy`."
        )
        raise ArgumentError(
            f"The state is of a dataset in {position.shards or 1} part(s), but this one has {shards.count}. {hint}"
        )
    if shards.fixed:
        return [] if worker in position.done else [worker]
    return [shard for shard in range(shards.count) if shard not in position.done][worker::workers]
