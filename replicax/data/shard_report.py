"""A report on sharding: which worker reads how much of a dataset, and whether together they read each row once."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypedDict

import jax
import numpy as np

from replicax.contracts.group import as_arrays, as_messages, current_group
from replicax.data.batch_split import SplitBatch
from replicax.data.batches import count_rows
from replicax.data.receivers import InputWorkers
from replicax.data.worker_channel import WorkerChannel
from replicax.typing import PyTree

_DIGEST = np.uint64


class _Counts(TypedDict):
    batches: int
    files: int | None


class ShardSummary:
    """A worker's rows in one pass: a digest of each, in how many steps it has some, and from how many files."""

    def __init__(self, digests: np.ndarray, batches: int, files: int | None = None):
        self.digests, self.batches, self.files = digests, batches, files  # files: None if not in files

    def encode(self) -> bytes:
        counts: _Counts = {"batches": self.batches, "files": self.files}
        head = json.dumps(counts).encode()
        return len(head).to_bytes(4, "big") + head + self.digests.tobytes()

    @classmethod
    def decode(cls, message: bytes) -> ShardSummary:
        end = 4 + int.from_bytes(message[:4], "big")
        counts: _Counts = json.loads(message[4:end])
        return cls(np.frombuffer(message[end:], _DIGEST), counts["batches"], counts["files"])


def row_digests(batches: Iterable[PyTree]) -> np.ndarray:
    """Returns a digest of each row, in order."""
    digests: list[int] = []
    for batch in batches:
        leaves = jax.tree.leaves(batch)
        for row in range(count_rows(batch)):
            found = hashlib.blake2b(digest_size=8)
            for leaf in leaves:
                found.update(np.ascontiguousarray(leaf[row]).tobytes())
            digests.append(int.from_bytes(found.digest(), "big"))
    return np.array(digests, _DIGEST)


def summarized(
    batches: Generator[PyTree], split: Callable[[PyTree], SplitBatch | None]
) -> tuple[ShardSummary, np.ndarray]:
    """Runs through global batches; returns which rows this worker's replicas get, and digests of all rows."""
    own, everything, steps = [row_digests([])], [row_digests([])], 0
    with contextlib.closing(batches):
        for batch in batches:
            everything.append(row_digests([batch]))
            part = split(batch)
            if part is not None and len(jax.tree.leaves(part.parts)[0]):
                own.append(row_digests([jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), part.parts)]))
                steps += 1
    return ShardSummary(np.concatenate(own), steps), np.concatenate(everything)


def report(
    summary: ShardSummary, source: np.ndarray | None, workers: InputWorkers, channel: WorkerChannel | None
) -> str:
    """Returns a line for each worker; all workers must call this together, and get the same."""
    summaries = [summary]
    if channel is not None:
        summaries = [ShardSummary.decode(each) for each in channel.exchange(summary.encode())]
        source = _of_first_worker(source, workers, channel)
    return _lines(workers.names, summaries, source)


def report_of_world(summarize: Callable[[], tuple[ShardSummary, np.ndarray]]) -> str:
    """Returns a line for each member of a group that may change."""
    group, source = current_group(), None

    def run() -> list[bytes]:
        nonlocal source
        summary, source = summarize()
        name = group.world.names[group.world.index].encode()
        return group.messages(len(name).to_bytes(4, "big") + name + summary.encode())

    messages = group.attempt(lambda: group.executed(run, as_arrays, as_messages))
    ends = [4 + int.from_bytes(message[:4], "big") for message in messages]
    names = [message[4:end].decode() for message, end in zip(messages, ends, strict=True)]
    summaries = [ShardSummary.decode(message[end:]) for message, end in zip(messages, ends, strict=True)]
    # If the messages are those that another member has got, this one may not have come to its own.
    return _lines(names, summaries, summarize()[1] if source is None else source)


def _lines(names: Sequence[str], summaries: Sequence[ShardSummary], source: np.ndarray | None) -> str:
    overlaps = _overlaps([each.digests for each in summaries], source)
    missing = "unknown" if source is None else str(_missing([each.digests for each in summaries], source))
    lines = []
    for name, each, overlap in zip(names, summaries, overlaps, strict=True):
        files = "" if each.files is None else f", {each.files} files"
        lines.append(
            f"{name}: {len(each.digests)} rows, {each.batches} batches{files}, overlap {overlap}, missing {missing}"
        )
    return "\n".join(lines)


def _of_first_worker(source: np.ndarray | None, workers: InputWorkers, channel: WorkerChannel) -> np.ndarray | None:
    if workers.index == 0:
        for worker in workers.others:
            channel.send(worker, "source", b"" if source is None else b"*" + source.tobytes())
        return source
    message = channel.receive(0, "source")
    return np.frombuffer(message[1:], _DIGEST) if message else None


def _counts(digests: np.ndarray) -> dict[int, int]:
    values, counts = np.unique(digests, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _overlaps(rows_read: list[np.ndarray], source: np.ndarray | None) -> list[int]:
    """Returns for each worker how many of its rows all workers together read more often than the source has them."""
    counts = [_counts(digests) for digests in rows_read]
    read = _counts(np.concatenate(rows_read))
    # Where the source is not known, no two workers should read the same row.
    there = {row: max(c.get(row, 0) for c in counts) for row in read} if source is None else _counts(source)
    surplus = {row: n - there.get(row, 0) for row, n in read.items() if n > there.get(row, 0)}
    return [sum(min(c.get(row, 0), n) for row, n in surplus.items()) for c in counts]


def _missing(rows_read: list[np.ndarray], source: np.ndarray) -> int:
    """Returns how many rows of the source no worker reads."""
    read = _counts(np.concatenate(rows_read))
    return sum(max(0, n - read.get(row, 0)) for row, n in _counts(source).items())
