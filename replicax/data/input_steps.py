"""Steps: what this worker's replicas get, of data that all workers read alike or that each of them reads by itself."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from replicax.data.batch_placement import owned_copy
from replicax.data.batch_split import Split, part_of
from replicax.data.batches import count_rows
from replicax.data.input_options import InputOptions
from replicax.data.position import Taken
from replicax.data.row_exchange import Form, Sharing, describe, shared_out
from replicax.data.shards import Piece
from replicax.data.step_agreement import Noted, agree
from replicax.data.worker_channel import WorkerChannel, Workers
from replicax.errors import BatchError

_log = logging.getLogger(__name__)
_ROWS_OF_A_DIGEST = 3
_BYTES_OF_A_ROW = 4096


class Step(NamedTuple):
    """The data of a step.

    Attributes:
        split: What the replicas get; None if the step is dropped.
        taken: Which rows of the source they are.
    """

    split: Split | None
    taken: list[Taken]


class StepMaker:
    """Makes the steps of one pass, together with the other workers.

    Args:
        workers: Who takes part.
        channel: To the others; None if there are none.
        options: How the dataset is distributed.

    Attributes:
        everywhere: Whether every worker gets all rows of a step in which not all replicas take part.
    """

    def __init__(self, workers: Workers, channel: WorkerChannel | None, options: InputOptions):
        self.everywhere = False
        self._workers, self._channel, self._options = workers, channel, options
        self._replicas = sum(workers.replicas)

    # Data that all workers read alike.

    def alike(self, batches: Iterator[Any]) -> Generator[Step]:
        """Makes steps of global batches that all workers read alike, and checks that they do."""
        noted = (self._noted_part(batch) for batch in batches)
        with contextlib.closing(_closing(noted, batches)) as items:
            for number, (part, notes) in enumerate(agree(items, self._channel)):
                self._check_alike(notes, f"Batch {number} of this pass")
                assert part is not None  # All workers have the same.
                yield Step(part.split, [Taken(0, 0, part.rows)])

    def of_arrays(self, arrays: Any, batches: Iterator[Any]) -> Generator[Step]:
        """Makes steps of global batches that are views of arrays which all workers have."""
        if self._channel is not None:
            said = [count_rows(arrays), digest(arrays, rows=16)]
            self._check_alike([json.loads(m) for m in self._channel.exchange(json.dumps(said).encode())], "The dataset")
        for batch in batches:
            yield Step(self.split(batch), [Taken(0, 0, count_rows(batch))])

    def _noted_part(self, batch: Any) -> Noted[_OwnPart]:
        split, rows = self.split(batch), count_rows(batch)
        if self._channel is None:
            return Noted(_OwnPart(rows, split), None, 0)
        if split is not None:  # It waits for its turn, and the source may use its memory again.
            split = split._replace(parts=jax.tree.map(owned_copy, split.parts))
        size = 1 if split is None else _size(split.parts)
        return Noted(_OwnPart(rows, split), [rows, digest(batch)], size)

    def split(self, batch: Any) -> Split | None:
        """Returns the parts of this worker's replicas of a global batch: views; None if it is dropped."""
        rows = _kept_rows(count_rows(batch), self._replicas, self._options.remainder)
        if not rows:
            return None
        sharing = Sharing(self._workers, (), rows, self.everywhere)
        first, end = sharing.parts_of(self._workers.index)
        return Split(sharing.replicas, part_of(batch, first, end - first, sharing.per_replica), first)

    def _check_alike(self, notes: list[Any], what: str) -> None:
        if all(note == notes[0] for note in notes):
            return
        names = self._workers.names
        found = "; ".join(
            f"{name}: no more batches" if note is None else f"{name}: {note[0]} rows, digest {note[1]}"
            for name, note in zip(names, notes, strict=True)
        )
        raise BatchError(
            f"The workers read different data. {what}: {found}. With auto_shard_policy='data' all workers must read "
            "the same global batches in the same order, of which each keeps its own rows: give shuffles the same seed "
            "on every worker. If each worker's data is its own, use auto_shard_policy='off', or 'file' with an "
            "rx.data.FileSource."
        )

    # Data that each worker reads by itself.

    def own(self, pieces: Iterator[Piece], drops_whole_steps: bool = False) -> Generator[Step]:
        """Makes steps of what each worker has for them.

        Args:
            pieces: What this worker has.
            drops_whole_steps: Whether remainder="drop" leaves out whole steps, not only the rows at their end.
        """
        note, tree = _Notes(), None
        noted = (Noted(piece, note.of(piece), _size(piece.batch)) for piece in pieces)
        described: list[Any] = [None] * self._workers.count
        with contextlib.closing(_closing(noted, pieces)) as items:
            for number, (piece, notes) in enumerate(agree(items, self._channel)):
                described = [n["form"] if n and n["form"] else known for n, known in zip(notes, described, strict=True)]
                taken = [Taken(w, u, n) for w, each in enumerate(notes) if each for u, n in each["taken"]]
                rows = tuple(sum(t.rows for t in taken if t.worker == w) for w in range(self._workers.count))
                if not self._goes_on(rows, number):
                    return
                full = all(each and each["full"] for each in notes) and self._is_even(rows)
                keep = full or not drops_whole_steps or self._options.remainder == "exact"
                kept = _kept_rows(sum(rows), self._replicas, self._options.remainder) if keep else 0
                tree = tree if piece is None else jax.tree.structure(piece.batch)
                form = self._form([d for d, n in zip(described, rows, strict=True) if n], tree, number)
                yield Step(self._shared(piece, rows, kept, form, number) if kept else None, taken)

    def _shared(self, piece: Piece | None, rows: tuple[int, ...], kept: int, form: Form, number: int) -> Split:
        sharing = Sharing(self._workers, rows, kept, self.everywhere)
        own = None if piece is None else piece.batch
        if self._channel is None:
            return Split(sharing.replicas, part_of(own, 0, sharing.replicas, sharing.per_replica))
        return shared_out(sharing, own, form, self._channel, f"rows{number}")

    def _form(self, described: list[Any], tree: Any, number: int) -> Form:
        if any(each != described[0] for each in described):
            raise BatchError(
                f"Step {number} of this pass: the workers' batches differ in structure, dtype or shape of a row: "
                + "; ".join(f"{each['text']} of {each['leaves']}" for each in described)
            )
        return Form(described[0], tree)

    def _is_even(self, rows: tuple[int, ...]) -> bool:
        total = sum(rows)
        return all(n * self._replicas == total * k for n, k in zip(rows, self._workers.replicas, strict=True))

    def _goes_on(self, rows: tuple[int, ...], number: int) -> bool:
        """Applies the policy for steps in which workers differ."""
        policy, names = self._options.uneven_workers, self._workers.names
        if self._is_even(rows) or policy == "drain":
            return True
        counts = ", ".join(f"{name}: {n}" for name, n in zip(names, rows, strict=True))
        if policy == "error":
            raise BatchError(
                f"Step {number} of this pass: the workers do not have rows in proportion to their replicas ({counts}). "
                "With uneven_workers='drain' all of them would count."
            )
        if min(rows) > 0:
            return True
        if self._workers.index == 0:
            _log.warning(
                "uneven_workers='shortest' ends the pass after %d steps: at least %d rows are left (%s in the next).",
                number, sum(rows), counts,
            )  # fmt: skip
        return False


def agreed_batch_size(own: int, channel: WorkerChannel | None) -> int:
    """Returns the largest batch size that a worker has seen; 0 if none has seen any."""
    return own if channel is None else max(int(size) for size in channel.exchange(str(own).encode()))


def share_of(batch_size: int, workers: Workers) -> int:
    """Returns how many of the rows of a global batch are of this worker, in proportion to its replicas."""
    first, replicas = workers.first_replica(workers.index), sum(workers.replicas)
    end = first + workers.replicas[workers.index]
    return batch_size * end // replicas - batch_size * first // replicas


def digest(batch: Any, rows: int = _ROWS_OF_A_DIGEST) -> str:
    """Returns a digest of what a batch is like and of a few of its rows: cheap, and enough to tell orders apart."""
    leaves, treedef = jax.tree.flatten(batch)
    found = hashlib.blake2b(str(treedef).encode(), digest_size=8)
    chosen = np.unique(np.linspace(0, count_rows(batch) - 1, rows).astype(int))
    for leaf in leaves:
        found.update(f"{leaf.dtype}{leaf.shape}".encode())
        for row in chosen:
            found.update(np.ascontiguousarray(leaf[row]).tobytes()[:_BYTES_OF_A_ROW])
    return found.hexdigest()


class _OwnPart(NamedTuple):
    """Of a global batch its number of rows, and what this worker keeps."""

    rows: int
    split: Split | None


class _Notes:
    """Notes on pieces; what batches are like is said when it changes."""

    def __init__(self) -> None:
        self._said: Any = None

    def of(self, piece: Piece) -> dict[str, Any]:
        form = describe(piece.batch)
        new, self._said = form != self._said, form
        return {"taken": piece.taken, "full": piece.full, "form": form if new else None}


def _kept_rows(rows: int, replicas: int, remainder: str) -> int:
    return rows if remainder == "exact" else rows - rows % replicas


def _size(batch: Any) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(batch))


def _closing(items: Iterable[Any], source: Any) -> Generator[Any]:
    """Yields `items` and closes the source that they are made of."""
    try:
        yield from items
    finally:
        close: Callable[[], None] | None = getattr(source, "close", None)
        if close is not None:
            close()
