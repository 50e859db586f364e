"""How a worker reads batches of rows: its part of each global batch by number, or files of its own."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Generator, Iterator

import numpy as np

from replicax.data.batch_split import kept_rows, usable_replicas
from replicax.data.dataset_reading import DatasetReading
from replicax.data.input_options import AutoShardPolicy, InputOptions
from replicax.data.input_steps import InputStep, StepByStep, share_of
from replicax.data.input_times import InputTimes
from replicax.data.position import Position, RowsRead
from replicax.data.rebatching import WorkerBatch
from replicax.data.receivers import InputWorkers
from replicax.data.rows import RowBatches
from replicax.data.shard_report import ShardSummary, row_digests, summarized
from replicax.data.step_agreement import OpenedPass, one_after_the_other
from replicax.errors import ArgumentError
from replicax.typing import PyTree


class RowReading(DatasetReading):
    """Rows by their numbers, or of files.

    Where any row can be read by its number, a worker reads those rows of each global batch that its replicas get.
    Files are dealt to the workers. Where there are fewer files than workers, or with the policy `"data"`, every worker
    reads all records, and decodes its own part.
    """

    def __init__(self, batches: RowBatches, workers: InputWorkers, options: InputOptions):
        policy = options.auto_shard_policy
        assert isinstance(policy, AutoShardPolicy)
        if policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE):
            raise ArgumentError(
                f"auto_shard_policy={policy.value!r} has no meaning for rx.data.Rows, which are dealt by their numbers "
                "or by files. Leave it out."
            )
        if policy is AutoShardPolicy.FILE and batches.files is None:
            raise ArgumentError(
                "auto_shard_policy='file' is for rows of files; those of this source are dealt one by one."
            )
        self._batches, self._workers, self._remainder = batches, workers, options.remainder
        files = batches.files or 0
        self._deals_files = (
            workers.count > 1
            and not batches.makes_all
            and (policy is AutoShardPolicy.FILE or (policy is AutoShardPolicy.AUTO and files >= workers.count))
        )
        if self._deals_files:
            workers.check_all_read()
        self.shares_batches = not self._deals_files

    def num_shards(self, position: Position) -> int:
        return self._batches.files or 1

    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        if self._batches.makes_all:
            return agreement.of_shared_batches(self._passes(position, 0, 1))
        passes = self._passes(position, self._workers.index, self._workers.count)
        source = f"{position.source}, {self._batches.grouping} after row {position.rows} of pass {position.number}"
        return agreement.of_worker_batches(passes, source=source, in_one_order=self.shares_batches)

    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        return _whole(self._passes(position, 0, 1))

    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        workers = self._workers
        if self._batches.makes_all:
            return summarized((each.batch for each in self._read(Position(), 0, 1)), agreement.own_part)
        batches = self._read(Position(), workers.index, workers.count)
        own = [row_digests([each.batch]) for each in batches if each.batch is not None]
        everything = None
        if workers.index == 0:
            everything = row_digests(each.batch for each in self._read(Position(), 0, 1))
        files = None
        if self._batches.files is not None:
            files = (
                len(range(workers.index, self._batches.files, workers.count))
                if self._deals_files
                else self._batches.files
            )
        return ShardSummary(np.concatenate([row_digests([]), *own]), len(own), files), everything

    def _passes(self, position: Position, worker: int, workers: int) -> Iterator[OpenedPass[WorkerBatch]]:
        """Returns the passes of a loop that begins at a position."""
        self.times = InputTimes(in_detail=True)
        # At once, for it notes in the position of the loop how the rows are read.
        first = OpenedPass(position, self._read(position, worker, workers))
        later = itertools.takewhile(
            lambda number: not self._batches.is_last(number - 1), itertools.count(position.number + 1)
        )
        following = (OpenedPass(each, self._read(each, worker, workers)) for each in map(Position, later))
        return itertools.chain([first], following)

    def _read(self, position: Position, worker: int, workers: int) -> Generator[WorkerBatch]:
        position.check_source(self._batches.identity, self.num_shards(position))
        if self._batches.files is not None:
            position.deal_to(workers if self._deals_files else 1)
        position = position.at_start()  # The loop counts in the other one, while this one is read.
        share: Callable[[int], tuple[int, int]] | None = functools.partial(_own_rows, self._workers, self._remainder)
        if workers == 1:
            share = None
        elif self._deals_files:
            share = functools.partial(_own_share, self._workers)
        share = share and functools.cache(share)  # Nearly all batches have as many rows.
        dealt = (worker, workers) if self._deals_files else (0, 1)
        return self._batches.read(position, share, *dealt, times=self.times)


def _own_share(workers: InputWorkers, rows: int) -> tuple[int, int]:
    return 0, max(1, share_of(rows, workers))


def _own_rows(workers: InputWorkers, remainder: str, rows: int) -> tuple[int, int]:
    """Returns which rows of a global batch of `rows` rows a worker reads: the first, and the one after the last."""
    # Those that its replicas get, so that no row is sent to another worker. Rows that are dropped come last.
    kept = kept_rows(rows, sum(workers.replicas), remainder) or rows
    replicas = usable_replicas(kept, sum(workers.replicas))
    first = workers.first_replica(workers.index)
    end = first + workers.replicas[workers.index]
    is_last = workers.index == workers.count - 1
    return min(first, replicas) * kept // replicas, rows if is_last else min(end, replicas) * kept // replicas


def _whole(passes: Iterator[OpenedPass[WorkerBatch]]) -> Generator[InputStep]:
    with contextlib.closing(one_after_the_other(passes)) as batches:
        for each, begins in batches:
            batch: PyTree = each.batch
            yield InputStep(batch, [RowsRead(0, *entry) for entry in each.rows_of_shards], begins)
