"""Reports on sharding: which worker reads how much of a dataset, and whether together they read all of it once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from replicax.data.batches import count_rows
from replicax.data.worker_channel import WorkerChannel, Workers

_DIGEST = np.uint64


class Shard:
    """What a worker reads in one pass.

    Attributes:
        digests: A digest of each of its rows.
        batches: Number of steps for which it has rows.
        files: Number of files that it reads; None if there are no files.
    """

    def __init__(self, digests: np.ndarray, batches: int, files: int | None = None):
        self.digests, self.batches, self.files = digests, batches, files

    def encode(self) -> bytes:
        """Returns the shard as bytes."""
        head = json.dumps({"batches": self.batches, "files": self.files}).encode()
        return len(head).to_bytes(4, "big") + head + self.digests.tobytes()

    @classmethod
    def decode(cls, message: bytes) -> Shard:
        """Returns the shard that `encode` has made `message` of."""
        end = 4 + int.from_bytes(message[:4], "big")
        return cls(np.frombuffer(message[end:], _DIGEST), **json.loads(message[4:end]))


def row_digests(batches: Iterable[Any]) -> np.ndarray:
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


def report(shard: Shard, whole: np.ndarray | None, workers: Workers, channel: WorkerChannel | None) -> str:
    """Returns a line for each worker; all workers must call this together, and get the same.

    Args:
        shard: What this worker reads.
        whole: The rows of the whole source, as process 0 has read it; None if that is not known.
        workers: Who takes part.
        channel: To the others.
    """
    shards = [shard]
    if channel is not None:
        shards = _everybodys(shard, workers, channel)
        whole = _of_first(whole, workers, channel)
    overlaps = _overlaps([each.digests for each in shards], whole)
    missing = "unknown" if whole is None else str(_missing([each.digests for each in shards], whole))
    lines = []
    for name, each, overlap in zip(workers.names, shards, overlaps, strict=True):
        files = "" if each.files is None else f", {each.files} files"
        lines.append(
            f"{name}: {len(each.digests)} rows, {each.batches} batches{files}, overlap {overlap}, missing {missing}"
        )
    return "\n".join(lines)


def _everybodys(shard: Shard, workers: Workers, channel: WorkerChannel) -> list[Shard]:
    for worker in _others(workers):
        channel.send(worker, "shard", shard.encode())
    own = {workers.index: shard}
    theirs = {worker: Shard.decode(channel.receive(worker, "shard")) for worker in _others(workers)}
    return [(own | theirs)[worker] for worker in range(workers.count)]


def _of_first(whole: np.ndarray | None, workers: Workers, channel: WorkerChannel) -> np.ndarray | None:
    if workers.index == 0:
        for worker in _others(workers):
            channel.send(worker, "whole", b"" if whole is None else b"*" + whole.tobytes())
        return whole
    message = channel.receive(0, "whole")
    return np.frombuffer(message[1:], _DIGEST) if message else None


def _others(workers: Workers) -> Iterator[int]:
    return (worker for worker in range(workers.count) if worker != workers.index)


def _counts(digests: np.ndarray) -> dict[int, int]:
    values, counts = np.unique(digests, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def _overlaps(shards: list[np.ndarray], whole: np.ndarray | None) -> list[int]:
    """Returns for each worker how many of its rows are read more often, by all, than the source has them."""
    counts = [_counts(digests) for digests in shards]
    read = _counts(np.concatenate(shards))
    # Where the source is not known, a row of one worker should be read by no other.
    there = {row: max(c.get(row, 0) for c in counts) for row in read} if whole is None else _counts(whole)
    surplus = {row: n - there.get(row, 0) for row, n in read.items() if n > there.get(row, 0)}
    return [sum(min(c.get(row, 0), n) for row, n in surplus.items()) for c in counts]


def _missing(shards: list[np.ndarray], whole: np.ndarray) -> int:
    """Returns how many rows of the source nobody reads."""
    read = _counts(np.concatenate(shards))
    return sum(max(0, n - read.get(row, 0)) for row, n in _counts(whole).items())
