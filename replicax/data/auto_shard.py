"""Which worker reads which rows of a dataset, by the `auto_shard_policy` of its options."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator

import jax
import numpy as np

from replicax.checks import call
from replicax.data.batch_placement import owned_copy
from replicax.data.batch_split import group_batches, split_group
from replicax.data.batches import count_rows
from replicax.data.dataset_reading import DatasetReading
from replicax.data.file_source import FileShards, FileSource
from replicax.data.input_context import InputContext
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.input_steps import InputStep, StepByStep, agreed_batch_size, share_of
from replicax.data.position import Position, RowsRead
from replicax.data.rebatching import ShardBatch, WorkerBatch, concatenated, grouped, rebatched, skip_rows
from replicax.data.receivers import InputWorkers
from replicax.data.row_reading import RowReading
from replicax.data.rows import RowBatches
from replicax.data.shard_report import ShardSummary, row_digests, summarized
from replicax.data.shards import HintShards, ShardReader, Shards, WorkerShards, shards_of_worker, takes_a_hint
from replicax.data.sources import ArrayBatches, HostBatches, host_batches
from replicax.data.step_agreement import OpenedPass
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import ArgumentError
from replicax.typing import PyTree


class SharedReading(DatasetReading):
    """All workers read the same global batches."""

    shares_batches = True

    def __init__(self, batches: HostBatches):
        self._batches = batches

    def num_shards(self, position: Position) -> int:
        return 1

    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        rows = self._rows_got(position)
        if isinstance(self._batches, ArrayBatches):
            yield from agreement.of_arrays(self._batches, rows)
            return
        with contextlib.closing(iter(self._batches)) as batches:
            following = skip_rows(batches, rows)
            found = (WorkerBatch(each, [(0, count_rows(each))]) for each in following)
            yield from agreement.of_shared_batches(iter([OpenedPass(position, found)]))

    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        rows, batches = self._rows_got(position), self._batches
        with contextlib.ExitStack() as stack:
            if isinstance(batches, ArrayBatches):
                found = batches.after(rows)
            else:
                found = skip_rows(stack.enter_context(contextlib.closing(iter(batches))), rows)
            for batch in found:
                yield _whole_step(batch, batches.lasts)

    def _rows_got(self, position: Position) -> int:
        rows = _rows_of_one(position)
        if isinstance(self._batches, ArrayBatches):
            position.check_source(f"{count_rows(self._batches.arrays)} rows", 1)
        return rows

    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        return summarized(iter(self._batches), agreement.own_part)


class ShardReading(DatasetReading):
    """Each worker reads shards of its own."""

    def __init__(self, shards_for: Callable[[Position], Shards], workers: InputWorkers, batch_size: int | None):
        workers.check_all_read()
        # The shards depend on where a pass begins. A batch size of None stands for that of the source's first batch.
        self._shards_for, self._workers, self._batch_size = shards_for, workers, batch_size

    def num_shards(self, position: Position) -> int:
        return self._shards_for(position).count

    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        mine = shards_of_worker(self._shards_for(position), position, self._workers.index, self._workers.count)
        reader = ShardReader(self._shards_for(position), mine, position)
        batches = self._worker_batches(reader, agreement.channel)
        yield from agreement.of_worker_batches(iter([OpenedPass(position, batches)]))

    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        mine = shards_of_worker(self._shards_for(position), position, 0, 1)
        reader = ShardReader(self._shards_for(position), mine, position)
        with contextlib.closing(self._worker_batches(reader, None)) as batches:
            for batch, rows_of_shards, _ in batches:
                yield InputStep(batch, [RowsRead(0, *each) for each in rows_of_shards])

    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        shards, workers = self._shards_for(Position()), self._workers
        mine = shards_of_worker(shards, Position(), workers.index, workers.count)
        reader = ShardReader(shards, mine, Position())
        digests = row_digests(batch for _, batch in reader)
        share = self._share(self._batch_size or reader.first_rows)
        files = len(mine) if isinstance(shards, FileShards) else None
        everything = None
        if workers.index == 0 and not shards.fixed:
            everything = row_digests(batch for _, batch in ShardReader(shards, range(shards.count), Position()))
        return ShardSummary(digests, -(-len(digests) // share), files), everything

    def _worker_batches(self, reader: ShardReader, channel: WorkerChannel | None) -> Generator[WorkerBatch]:
        with contextlib.closing(iter(reader)) as batches:
            if self._batch_size is not None:
                yield from rebatched(batches, self._share(self._batch_size))
            else:
                size, all_batches = _with_agreed_size(reader, batches, channel)
                yield from rebatched(all_batches, self._share(size))

    def _share(self, batch_size: int) -> int:
        return max(1, share_of(batch_size, self._workers))


def _with_agreed_size(
    reader: ShardReader, batches: Generator[ShardBatch], channel: WorkerChannel | None
) -> tuple[int, Iterator[ShardBatch]]:
    """Returns the size of global batches, on which all workers agree by their first ones, and all batches."""
    first: list[ShardBatch] = []
    failed: list[Exception] = []
    try:
        first.extend([found] if (found := next(batches, None)) is not None else [])
    except Exception as error:  # `again` raises it, after the exchange that the others wait for.
        failed.append(error)
    size = agreed_batch_size(reader.first_rows, channel)

    def again() -> Iterator[ShardBatch]:
        for error in failed:
            raise error
        yield from first
        yield from batches

    return size, again()


class FunctionReading(DatasetReading):
    """Each worker reads the per-replica batches of a dataset that a function makes for it."""

    def __init__(
        self, dataset_fn: Callable[[InputContext], Iterable[PyTree]], workers: InputWorkers, options: InputOptions
    ):
        workers.check_all_read()
        self._dataset_fn, self._workers, self._remainder = dataset_fn, workers, options.remainder
        context = InputContext(workers.count, workers.index, sum(workers.replicas))
        self._source = host_batches(lambda: call("dataset_fn", dataset_fn, (context,)))
        self._shards = WorkerShards(self._source, workers.count)

    def num_shards(self, position: Position) -> int:
        return self._workers.count

    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        mine = shards_of_worker(self._shards, position, self._workers.index, self._workers.count)
        if agreement.channel is None:
            yield from self._alone(position.skipped(0))
            return
        with contextlib.closing(iter(ShardReader(self._shards, mine, position))) as batches:
            own = grouped(batches, self._workers.replicas[self._workers.index])
            yield from agreement.of_worker_batches(iter([OpenedPass(position, own)]), drops_whole_steps=True)

    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        # The pass goes on with the batches that it began with, whatever the number of replicas is by now. That is noted
        # at once: workers that come before the first step need it.
        position.replicas = position.replicas or replicas
        return self._whole(_rows_of_one(position), position.replicas)

    def _whole(self, rows: int, replicas: int) -> Generator[InputStep]:
        batches = host_batches(lambda: call("dataset_fn", self._dataset_fn, (InputContext(1, 0, replicas),)))
        with contextlib.closing(iter(batches)) as opened:
            for group in group_batches(skip_rows(opened, rows), replicas):
                yield _whole_step(concatenated(group), lasts=replicas > 1)

    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        mine = shards_of_worker(self._shards, Position(), self._workers.index, self._workers.count)
        digests = [row_digests([batch]) for _, batch in ShardReader(self._shards, mine, Position())]
        steps = -(-len(digests) // self._workers.replicas[self._workers.index])
        own = np.concatenate([row_digests([]), *digests])
        return ShardSummary(own, steps), own if self._workers.count == 1 else None

    def _alone(self, skipped: int) -> Generator[InputStep]:
        replicas = self._workers.replicas[0]
        with contextlib.closing(iter(self._source)) as batches:
            for group in group_batches(skip_rows(batches, skipped), replicas):
                rows = sum(count_rows(batch) for batch in group)
                yield InputStep(split_group(group, replicas, self._remainder), [RowsRead(0, 0, rows)])


def choose_reading(
    source: PyTree, batches: HostBatches, batch_size: int | None, options: InputOptions, workers: InputWorkers
) -> DatasetReading:
    """Returns how a dataset is read under the policy of its options."""
    policy = options.auto_shard_policy
    if isinstance(source, RowBatches):
        return RowReading(source, workers, options)
    if isinstance(source, FileSource):
        if policy in (AutoShardPolicy.AUTO, AutoShardPolicy.FILE):
            return ShardReading(lambda position: FileShards(source), workers, source.batch_size)
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
        shards = WorkerShards(batches, workers.count)
        return ShardReading(lambda position: shards, workers, batch_size)
    return SharedReading(batches)


class _HintReading(ShardReading):
    """As many shards as there are workers; a pass that continues another one reads the shards of that one."""

    def __init__(self, source: PyTree, batches: HostBatches, workers: InputWorkers):
        super().__init__(lambda position: HintShards(source, self._count(position)), workers, None)
        self._unsharded = SharedReading(batches)

    def _count(self, position: Position) -> int:
        return position.shards if position.rows and position.shards else self._workers.count

    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        if self._count(position) == self._workers.count == 1:
            return self._unsharded.steps(agreement, position)
        return super().steps(agreement, position)

    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        return self._unsharded.summarize(agreement) if self._workers.count == 1 else super().summarize(agreement)

    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        if self._count(position) == 1:
            return self._unsharded.whole(position, replicas)
        return super().whole(position, replicas)


def _rows_of_one(position: Position) -> int:
    """Returns how many rows the loop has got of a source that is read as one."""
    if position.rows and position.shards != 1:
        raise ArgumentError(
            f"The state is of a dataset that was read in {position.shards} parts (files or shards), but this one is "
            "read as one. Give it the same source and `auto_shard_policy`."
        )
    return position.skipped(0)


def _whole_step(batch: PyTree, lasts: bool) -> InputStep:
    """Returns a step of a batch that all workers read; `lasts`: its memory is not the source's, which uses it again."""
    rows_read = [RowsRead(0, 0, count_rows(batch))]
    return InputStep(batch if lasts else jax.tree.map(owned_copy, batch), rows_read)
