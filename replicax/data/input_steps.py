"""Steps on which all workers agree one by one: the rows that this worker's replicas get, of what all have read."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypedDict

import jax
import numpy as np

from replicax.data.batch_placement import VALUES, owned_copy
from replicax.data.batch_split import SplitBatch, kept_rows, part_of, split_batch
from replicax.data.batches import count_rows
from replicax.data.input_options import InputOptions
from replicax.data.position import Position, RowsRead
from replicax.data.rebatching import WorkerBatch
from replicax.data.receivers import InputWorkers, Receivers
from replicax.data.row_exchange import BatchDescription, BatchStructure, RowAssignment, describe, exchange_rows
from replicax.data.sources import ArrayBatches
from replicax.data.step_agreement import Announcement, OpenedPass, agree, one_after_the_other
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import BatchError
from replicax.typing import PyTree

_log = logging.getLogger(__name__)
_BYTES_OF_A_ROW = 4096
# How many rows a digest looks at, and up to how many bytes of an array at all: of each batch, and once for all batches.
_QUICK, _THOROUGH = (3, 1 << 16), (16, 1 << 20)


class InputStep(NamedTuple):
    """The data of a step, in host memory."""

    data: PyTree  # this worker's `SplitBatch`, or, where each worker reads all, the batch; None if it is dropped
    rows_read: list[RowsRead]
    begins: Position | None = None  # as `step_agreement.Agreed` has it


class _SharedBatchNote(NamedTuple):
    """The properties of a batch that workers compare if all of them read it."""

    rows: int
    digest: str


class _WorkerBatchNote(TypedDict):
    """The properties of a worker's own batch that it tells the others; the description only where it is new."""

    rows: int
    rows_of_shards: list[tuple[int, ...]]  # as in `WorkerBatch`
    full: bool
    description: BatchDescription | None


class StepByStep:
    """One of the two ways of `passes.Agreement`: makes the steps of one pass, together with the other workers."""

    def __init__(self, receivers: Receivers, channel: WorkerChannel | None, options: InputOptions):
        self.form, self.receivers, self.channel = VALUES, receivers, channel
        self._workers, self._options = receivers.workers, options
        self._replicas = sum(receivers.workers.replicas)

    def split(self, data: SplitBatch, receivers: Receivers) -> SplitBatch:
        """Returns the data of a step, which is split already."""
        return data

    def placed(self, data: SplitBatch) -> PyTree:
        """Puts the data of a step on the devices."""
        return self.form.put(data, self.receivers)

    def given(self, placed: PyTree) -> PyTree:
        """Returns the data of a step as it was placed."""
        return placed

    def close(self) -> None:
        """Ends the exchange of messages with the other workers."""
        if self.channel is not None:
            self.channel.close()

    # Data that all workers read alike.

    def of_shared_batches(self, passes: Iterator[OpenedPass[WorkerBatch]]) -> Generator[InputStep]:
        """Makes steps of global batches that all workers read alike, and checks that they do."""
        first = 0  # step of the pass
        with contextlib.closing(agree(_announced(passes, self._announced_part), self.channel)) as agreed:
            for step, (part, notes, begins) in enumerate(agreed):
                first = first if begins is None else step
                self._check_alike(notes, f"Batch {step - first} of this pass")
                assert part is not None  # All workers have the same.
                yield InputStep(part.split, [RowsRead(0, *each) for each in part.rows_of_shards], begins)

    def of_arrays(self, batches: ArrayBatches, got: int) -> Generator[InputStep]:
        """Makes steps of global batches that are views of arrays which all workers have, after `got` rows of them."""
        if self.channel is not None:
            source = self._source(f"batches of {batches.size} rows after row {got}")
            told = json.dumps([count_rows(batches.arrays), digest(batches.arrays, thorough=True), source]).encode()
            found = [json.loads(message) for message in self.channel.exchange(told)]
            self._check_alike([each[:2] for each in found], "The dataset")
            self._check_same_source([each[2] for each in found])
        for batch in batches.after(got):
            yield InputStep(self.own_part(batch), [RowsRead(0, 0, count_rows(batch))])

    def _announced_part(self, found: WorkerBatch) -> Announcement[_OwnPart, _SharedBatchNote | None]:
        batch, rows_of_shards, _ = found
        split, rows = self.own_part(batch), count_rows(batch)
        if self.channel is None:
            return Announcement(_OwnPart(rows_of_shards, split), None, 0)
        if split is not None:  # It waits for its turn, and the source may use its memory again.
            split = split._replace(parts=jax.tree.map(owned_copy, split.parts))
        size = 1 if split is None else _size(split.parts)
        return Announcement(_OwnPart(rows_of_shards, split), _SharedBatchNote(rows, digest(batch)), size)

    def own_part(self, batch: PyTree) -> SplitBatch | None:
        """Returns the parts of a global batch that this worker's replicas get: views; None if it is dropped."""
        return own_part(batch, self._workers, self._options.remainder, self.form.everywhere)

    def _check_alike(self, notes: Sequence[_SharedBatchNote | None], what: str) -> None:
        if all(note == notes[0] for note in notes):
            return
        names = self._workers.names
        found = "; ".join(
            f"{name}: no more batches" if note is None else f"{name}: {note[0]} rows, digest {note[1]}"
            for name, note in zip(names, notes, strict=True)
        )
        raise BatchError(
            f"The workers read different data. {what}: {found}. With auto_shard_policy='data' all workers must read "
            "the same global batches in the same order, and each uses its own rows of them: give shuffles the same "
            "seed on every worker. Where each worker has its own part of each global batch, use "
            "strategy.distribute_datasets_from_function; where its batches are of global size, use "
            "auto_shard_policy='off', or 'file' with an rx.data.FileSource."
        )

    # Data that each worker reads by itself.

    def of_worker_batches(
        self,
        passes: Iterator[OpenedPass[WorkerBatch]],
        drops_whole_steps: bool = False,
        source: str | None = None,
        in_one_order: bool = False,
    ) -> Generator[InputStep]:
        """Makes steps of the batches that each worker has for them.

        Args:
            passes: The passes over those of this worker.
            drops_whole_steps: Whether remainder="drop" leaves out whole steps, not only the rows at their end.
            source: What all workers must read alike; None if each may read something else.
            in_one_order: Whether the batches are parts of global ones: then the rows of the last one always count.
        """
        if self.channel is None:
            yield from self._of_own_batches(passes)  # There is nobody to tell of them.
            return
        if source is not None:
            sources = self.channel.exchange(self._source(source).encode())
            self._check_same_source([message.decode() for message in sources])
        tree, alike, split_by = None, None, None  # the last of which serves all steps that are alike
        described: list[BatchDescription | None] = [None] * self._workers.count
        shortest = self._options.uneven_workers == "shortest" and not in_one_order
        first, ended = 0, False  # step of the pass; whether the workers have ended it before its last one
        announced = _announced(passes, _NoteMaker().announcement)
        with contextlib.closing(agree(announced, self.channel, shortest)) as agreed:
            for step, (own, notes, begins) in enumerate(agreed):
                first, ended = (first, ended) if begins is None else (step, False)
                if is_news := any(note and note["description"] for note in notes):
                    described = [
                        (note and note["description"]) or known for note, known in zip(notes, described, strict=True)
                    ]
                if ended:
                    continue
                rows_read = [
                    RowsRead(worker, *each)
                    for worker, note in enumerate(notes)
                    if note
                    for each in note["rows_of_shards"]
                ]
                batch = None if own is None else own.batch
                tree = tree if batch is None else jax.tree.structure(batch)
                found = (self.form.everywhere, tree is None, [note and (note["rows"], note["full"]) for note in notes])
                if is_news or found != alike:
                    rows = tuple(note["rows"] if note else 0 for note in notes)
                    if not in_one_order and not self._goes_on(rows, step - first):
                        ended = True
                        continue
                    told = [each for each, n in zip(described, rows, strict=True) if each and n]
                    full = all(note and note["full"] for note in notes) and self._is_even(rows)
                    keep = full or not drops_whole_steps or self._options.remainder == "exact"
                    kept = kept_rows(sum(rows), self._replicas, self._options.remainder) if keep else 0
                    structure = self._structure(told, tree, step - first)
                    assignment = RowAssignment(self._workers, rows, kept, self.form.everywhere)
                    alike, split_by = found, (assignment, structure) if kept else None
                split = None
                if split_by is not None:
                    assignment, structure = split_by
                    split = exchange_rows(assignment, batch, structure, self.channel, f"rows{step}")
                yield InputStep(split, rows_read, begins)

    def _of_own_batches(self, passes: Iterator[OpenedPass[WorkerBatch]]) -> Generator[InputStep]:
        with contextlib.closing(one_after_the_other(passes)) as own:
            for each, begins in own:
                split = None
                if each.batch is not None:
                    split = split_batch(each.batch, self._replicas, self._options.remainder, lasts=True)
                yield InputStep(split, [RowsRead(0, *entry) for entry in each.rows_of_shards], begins)

    def _source(self, text: str) -> str:
        return f"{text}, remainder={self._options.remainder!r}"

    def _check_same_source(self, found: Sequence[str]) -> None:
        if any(each != found[0] for each in found):
            listed = "; ".join(f"{name}: {each}" for name, each in zip(self._workers.names, found, strict=True))
            raise BatchError(
                f"The workers read different data: {listed}. Give all of them the same files in the same order, the "
                "same shuffle, batch size and options, and the same state."
            )

    def _structure(
        self, described: Sequence[BatchDescription], tree: jax.tree_util.PyTreeDef | None, step: int
    ) -> BatchStructure:
        if any(each != described[0] for each in described):
            raise BatchError(
                f"Step {step} of this pass: the workers' batches differ in structure, dtype or shape of a row: "
                + "; ".join(f"{each['text']} of {each['leaves']}" for each in described)
            )
        return BatchStructure(described[0], tree)

    def _is_even(self, rows: tuple[int, ...]) -> bool:
        total = sum(rows)
        return all(n * self._replicas == total * k for n, k in zip(rows, self._workers.replicas, strict=True))

    def _goes_on(self, rows: tuple[int, ...], step: int) -> bool:
        """Applies the policy for steps in which workers differ."""
        policy, names = self._options.uneven_workers, self._workers.names
        if self._is_even(rows) or policy == "drain":
            return True
        counts = ", ".join(f"{name}: {n}" for name, n in zip(names, rows, strict=True))
        if policy == "error":
            raise BatchError(
                f"Step {step} of this pass: the workers do not have rows in proportion to their replicas ({counts}). "
                "With uneven_workers='drain' all of them would count."
            )
        if min(rows) > 0:
            return True
        if self._workers.index == 0:
            _log.warning(
                "uneven_workers='shortest' ends the pass after %d steps: at least %d rows are left (%s in the next).",
                step, sum(rows), counts,
            )  # fmt: skip
        return False


def own_part(batch: PyTree, workers: InputWorkers, remainder: str, everywhere: bool = False) -> SplitBatch | None:
    """Returns the parts of a global batch that this worker's replicas get: views; None if it is dropped."""
    rows = kept_rows(count_rows(batch), sum(workers.replicas), remainder)
    if not rows:
        return None
    assignment = RowAssignment(workers, (), rows, everywhere)
    first, end = assignment.parts_of(workers.index)
    return SplitBatch(assignment.replicas, part_of(batch, first, end - first, assignment.per_replica), first)


def agreed_batch_size(own: int, channel: WorkerChannel | None) -> int:
    """Returns the largest batch size that a worker has seen; 0 if none has seen any."""
    return own if channel is None else max(int(size) for size in channel.exchange(str(own).encode()))


def share_of(batch_size: int, workers: InputWorkers) -> int:
    """Returns how many of the rows of a global batch this worker gets, in proportion to its replicas."""
    first, replicas = workers.first_replica(workers.index), sum(workers.replicas)
    end = first + workers.replicas[workers.index]
    return batch_size * end // replicas - batch_size * first // replicas


def digest(batch: PyTree, *, thorough: bool = False) -> str:
    """Returns a digest of a batch: of all of small arrays, of a few rows of large ones, which tells orders apart."""
    rows, whole = _THOROUGH if thorough else _QUICK
    leaves, treedef = jax.tree.flatten(batch)
    found = hashlib.blake2b(str(treedef).encode(), digest_size=8)
    chosen = np.unique(np.linspace(0, count_rows(batch) - 1, rows).astype(int))
    for leaf in leaves:
        found.update(f"{leaf.dtype}{leaf.shape}".encode())
        if leaf.nbytes <= whole and not leaf.dtype.hasobject:
            found.update(np.ascontiguousarray(leaf).tobytes())
            continue
        for row in chosen:
            found.update(np.ascontiguousarray(leaf[row]).tobytes()[:_BYTES_OF_A_ROW])
    return found.hexdigest()


class _OwnPart(NamedTuple):
    """The rows that a global batch was made of, and this worker's part of it."""

    rows_of_shards: list[tuple[int, ...]]  # as in `WorkerBatch`
    split: SplitBatch | None


class _NoteMaker:
    """Makes the notes on a worker's own batches."""

    def __init__(self) -> None:
        self._told: object = None  # what the description that was told last depends on

    def announcement(self, batch: WorkerBatch) -> Announcement[WorkerBatch, _WorkerBatchNote]:
        """Returns what is to be told of a batch."""
        return Announcement(batch, self._note(batch), _size(batch.batch))

    def _note(self, batch: WorkerBatch) -> _WorkerBatchNote:
        rows, description = 0, None
        if batch.batch is not None:
            leaves, treedef = jax.tree.flatten(batch.batch)
            rows, kind = len(leaves[0]), (treedef, [(leaf.dtype, leaf.shape[1:]) for leaf in leaves])
            if kind != self._told:
                self._told, description = kind, describe(batch.batch)
        return {
            "rows": rows,
            "rows_of_shards": batch.rows_of_shards,
            "full": batch.full,
            "description": description,
        }


def _size(batch: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(batch))


def _announced(
    passes: Iterator[OpenedPass[WorkerBatch]], announcement: Callable[[WorkerBatch], Announcement[Any, Any]]
) -> Iterator[OpenedPass[Announcement[Any, Any]]]:
    return (OpenedPass(position, _each(announcement, batches)) for position, batches in passes)


def _each(
    announcement: Callable[[WorkerBatch], Announcement[Any, Any]], batches: Generator[WorkerBatch]
) -> Generator[Announcement[Any, Any]]:
    with contextlib.closing(batches):
        for batch in batches:
            yield announcement(batch)
