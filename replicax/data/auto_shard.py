"""Sharding: which worker reads what of a dataset, by the policy of its options."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np

from replicax.data.batch_split import group_batches, split_group
from replicax.data.batches import count_rows
from replicax.data.input_context import InputContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.input_steps import Step, StepMaker, agreed_batch_size, share_of
from replicax.data.position import Position, Taken
from replicax.data.shard_report import Shard, row_digests
from replicax.data.shards import (
    FileSource,
    FileUnits,
    HintUnits,
    OwnUnits,
    Piece,
    UnitReader,
    Units,
    behind,
    grouped,
    rebatched,
    takes_a_hint,
    units_of_worker,
)
from replicax.data.sources import ArrayBatches, HostBatches, host_batches
from replicax.data.worker_channel import WorkerChannel, Workers
from replicax.errors import ArgumentError


class Reading(abc.ABC):
    """How this worker reads a dataset.

    Attributes:
        shares_batches: Whether all workers read the same global batches.
    """

    shares_batches = False

    @abc.abstractmethod
    def units(self, position: Position) -> int:
        """Returns in how many units a pass reads that begins at a position."""

    @abc.abstractmethod
    def steps(self, maker: StepMaker, channel: WorkerChannel | None, position: Position) -> Generator[Step]:
        """Opens the source and yields the steps behind a position."""

    @abc.abstractmethod
    def shard(self, maker: StepMaker) -> tuple[Shard, np.ndarray | None]:
        """Runs through the source; returns what this worker reads in a pass, and the rows of the whole source.

        The latter only where it is worker 0 and can know.
        """


class AlikeReading(Reading):
    """All workers read the same global batches."""

    shares_batches = True

    def __init__(self, batches: HostBatches):
        self._batches = batches

    def units(self, position: Position) -> int:
        return 1

    def steps(self, maker: StepMaker, channel: WorkerChannel | None, position: Position) -> Generator[Step]:
        if position.rows and position.units != 1:
            raise ArgumentError(
                f"The state is of a dataset that was read in {position.units} parts (files or shards), but this one "
                "is read as a whole. Give it the same source and `auto_shard_policy`."
            )
        rows = position.skipped(0)
        if isinstance(self._batches, ArrayBatches):
            yield from maker.of_arrays(self._batches.arrays, self._batches.after(rows))
            return
        with contextlib.closing(iter(self._batches)) as batches:
            yield from maker.alike(behind(batches, rows))

    def shard(self, maker: StepMaker) -> tuple[Shard, np.ndarray | None]:
        own, whole, steps = [], [], 0
        with contextlib.closing(iter(self._batches)) as batches:
            for batch in batches:
                whole.append(row_digests([batch]))
                split = maker.split(batch)
                if split is not None and len(jax.tree.leaves(split.parts)[0]):
                    own.append(row_digests([jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), split.parts)]))
                    steps += 1
        return Shard(_together(own), steps), _together(whole)


class OwnReading(Reading):
    """Each worker reads units of its own.

    Args:
        units_for: Returns the units of a pass that begins at a position.
        workers: Who takes part.
        batch_size: Rows of a global batch; None for what the source's first batch has.
    """

    def __init__(self, units_for: Callable[[Position], Units], workers: Workers, batch_size: int | None):
        self._units_for, self._workers, self._batch_size = units_for, workers, batch_size

    def units(self, position: Position) -> int:
        return self._units_for(position).count

    def steps(self, maker: StepMaker, channel: WorkerChannel | None, position: Position) -> Generator[Step]:
        mine = units_of_worker(self._units_for(position), position, self._workers.index, self._workers.count)
        reader = UnitReader(self._units_for(position), mine, position)
        yield from maker.own(self._pieces(reader, channel))

    def shard(self, maker: StepMaker) -> tuple[Shard, np.ndarray | None]:
        units, workers = self._units_for(Position()), self._workers
        mine = units_of_worker(units, Position(), workers.index, workers.count)
        reader = UnitReader(units, mine, Position())
        digests = row_digests(batch for _, batch in reader)
        share = self._share(self._batch_size or reader.first_rows)
        files = len(mine) if isinstance(units, FileUnits) else None
        whole = None
        if workers.index == 0 and not units.fixed:
            whole = row_digests(batch for _, batch in UnitReader(units, range(units.count), Position()))
        return Shard(digests, -(-len(digests) // share), files), whole

    def _pieces(self, reader: UnitReader, channel: WorkerChannel | None) -> Generator[Piece]:
        with contextlib.closing(iter(reader)) as batches:
            if self._batch_size is not None:
                yield from rebatched(batches, self._share(self._batch_size))
            else:
                size, all_batches = _with_agreed_size(reader, batches, channel)
                yield from rebatched(all_batches, self._share(size))

    def _share(self, batch_size: int) -> int:
        return max(1, share_of(batch_size, self._workers))


def _with_agreed_size(
    reader: UnitReader, batches: Generator[tuple[int, Any]], channel: WorkerChannel | None
) -> tuple[int, Iterator[tuple[int, Any]]]:
    """Looks at the first batch for its size, which all workers agree on; an error is raised where it is read again."""
    first: list[tuple[int, Any]] = []
    failed: list[Exception] = []
    try:
        first.extend([found] if (found := next(batches, None)) is not None else [])
    except Exception as error:  # Only after the others have heard from this worker.
        failed.append(error)
    size = agreed_batch_size(reader.first_rows, channel)

    def again() -> Iterator[tuple[int, Any]]:
        for error in failed:
            raise error
        yield from first
        yield from batches

    return size, again()


class FunctionReading(Reading):
    """Each worker reads the per-replica batches of a dataset that a function makes for it.

    Args:
        dataset_fn: The function, of an `InputContext`.
        workers: Who takes part.
        options: How the dataset is distributed.
    """

    def __init__(self, dataset_fn: Callable[[InputContext], Any], workers: Workers, options: InputOptions):
        self._workers, self._remainder = workers, options.remainder
        context = InputContext(workers.count, workers.index, sum(workers.replicas))
        self._source = host_batches(lambda: dataset_fn(context))
        self._units = OwnUnits(self._source, workers.count)

    def units(self, position: Position) -> int:
        return self._workers.count

    def steps(self, maker: StepMaker, channel: WorkerChannel | None, position: Position) -> Generator[Step]:
        mine = units_of_worker(self._units, position, self._workers.index, self._workers.count)
        if channel is None:
            yield from self._alone(position.skipped(0))
            return
        with contextlib.closing(iter(UnitReader(self._units, mine, position))) as batches:
            pieces = grouped(batches, self._workers.replicas[self._workers.index])
            yield from maker.own(pieces, drops_whole_steps=True)

    def shard(self, maker: StepMaker) -> tuple[Shard, np.ndarray | None]:
        mine = units_of_worker(self._units, Position(), self._workers.index, self._workers.count)
        digests = [row_digests([batch]) for _, batch in UnitReader(self._units, mine, Position())]
        steps = -(-len(digests) // self._workers.replicas[self._workers.index])
        own = _together(digests)
        return Shard(own, steps), own if self._workers.count == 1 else None

    def _alone(self, skipped: int) -> Generator[Step]:
        replicas = self._workers.replicas[0]
        with contextlib.closing(iter(self._source)) as batches:
            for group in group_batches(behind(batches, skipped), replicas):
                rows = sum(count_rows(batch) for batch in group)
                yield Step(split_group(group, replicas, self._remainder), [Taken(0, 0, rows)])


def choose_reading(
    source: Any, batches: HostBatches, batch_size: int | None, options: InputOptions, workers: Workers
) -> Reading:
    """Returns how a dataset is read under a policy.

    Args:
        source: What the user has given.
        batches: Its batches.
        batch_size: Rows of a global batch, if that is known.
        options: How it is distributed.
        workers: Who takes part.

    Raises:
        ArgumentError: The policy does not fit the source.
    """
    policy = options.auto_shard_policy
    if isinstance(source, FileSource):
        if policy in (AutoShardPolicy.AUTO, AutoShardPolicy.FILE):
            return OwnReading(lambda position: FileUnits(source), workers, source.batch_size)
        batch_size = source.batch_size
    elif policy is AutoShardPolicy.FILE:
        raise ArgumentError(
            "auto_shard_policy='file' is for an rx.data.FileSource(files, read_fn, batch_size=...), got a "
            f"{batches.name}."
        )
    if policy is AutoShardPolicy.HINT:
        if isinstance(source, FileSource) or not takes_a_hint(source):
            raise ArgumentError(
                "auto_shard_policy='hint' is for a dataset with a method `shard(num_shards, index)` or a Grain "
                f"MapDataset, got a {batches.name}."
            )
        return _HintReading(source, batches, workers)
    if policy is AutoShardPolicy.OFF and workers.count > 1:
        units = OwnUnits(batches, workers.count)
        return OwnReading(lambda position: units, workers, batch_size)
    return AlikeReading(batches)


class _HintReading(OwnReading):
    """As many shards as there are workers; a pass that goes on reads the shards in which it was begun."""

    def __init__(self, source: Any, batches: HostBatches, workers: Workers):
        super().__init__(lambda position: HintUnits(source, self._shards(position)), workers, None)
        self._whole = AlikeReading(batches)

    def _shards(self, position: Position) -> int:
        return position.units if position.rows and position.units else self._workers.count

    def steps(self, maker: StepMaker, channel: WorkerChannel | None, position: Position) -> Generator[Step]:
        if self._shards(position) == self._workers.count == 1:
            return self._whole.steps(maker, channel, position)
        return super().steps(maker, channel, position)

    def shard(self, maker: StepMaker) -> tuple[Shard, np.ndarray | None]:
        return self._whole.shard(maker) if self._workers.count == 1 else super().shard(maker)


def _together(digests: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(digests) if digests else row_digests([])
