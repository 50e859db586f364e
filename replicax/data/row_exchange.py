"""Exchanging rows between workers, for the steps in which they do not have them in proportion to their replicas.

Such a step has all rows of all workers, in the order of the workers, and is split as a single process splits a batch.
Each worker sends the rows that others need, and nothing else. What is sent is numbers: nothing is unpickled.
"""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.data.batch_split import Split, usable_replicas
from replicax.data.batches import count_rows
from replicax.data.shards import joined
from replicax.data.worker_channel import WorkerChannel, Workers
from replicax.errors import BatchError


def describe(batch: Any) -> dict[str, Any]:
    """Returns what is needed to make a batch like this one of numbers alone, as JSON can hold it."""
    leaves = jax.tree.leaves(batch)
    treedef: Any = jax.tree.structure(batch)
    try:
        tree = base64.b64encode(treedef.serialize_using_proto()).decode()
    except ValueError:  # A class of the user's: only a process that has seen one can make another.
        tree = ""
    return {
        "tree": tree,
        "text": str(treedef),
        "leaves": [[np.dtype(leaf.dtype).name, list(leaf.shape[1:])] for leaf in leaves],
    }


class Form:
    """What the batches of a step are like: structure, dtypes, shapes of rows.

    Args:
        described: As `describe` returns it.
        tree: The structure of this worker's batches, if it has had any.

    Raises:
        BatchError: This worker cannot make such batches.
    """

    def __init__(self, described: dict[str, Any], tree: Any = None):
        self._leaves = [(jnp.dtype(name), tuple(shape)) for name, shape in described["leaves"]]
        if tree is not None and str(tree) == described["text"]:
            self._treedef = tree
        elif described["tree"]:
            registry = jax.tree_util.default_registry
            self._treedef = jax.tree_util.PyTreeDef.deserialize_using_proto(
                registry, base64.b64decode(described["tree"])
            )
        else:
            raise BatchError(
                f"This worker has no data, and the batches of the others hold classes ({described['text']}) that "
                "cannot be made from their description. Use tuples, lists and dicts, or give each worker some data."
            )

    def encode(self, batch: Any) -> bytes:
        """Returns the numbers of a batch."""
        return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(batch))

    def decode(self, message: bytes, rows: int) -> Any:
        """Returns the batch of `rows` rows whose numbers these are."""
        memory, leaves, start = np.frombuffer(message, np.uint8), [], 0
        for dtype, shape in self._leaves:
            size = rows * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            leaves.append(memory[start : start + size].view(dtype).reshape(rows, *shape))
            start += size
        return jax.tree.unflatten(self._treedef, leaves)


@dataclasses.dataclass(frozen=True)
class Sharing:
    """How the rows of a step are shared out.

    Args:
        workers: Who takes part.
        rows: How many rows each worker has.
        kept: How many of all rows are used: the first so many.
        everywhere: Whether every worker needs all rows if not all replicas take part.
    """

    workers: Workers
    rows: tuple[int, ...]
    kept: int
    everywhere: bool = False

    @property
    def replicas(self) -> int:
        """How many replicas take part."""
        return usable_replicas(self.kept, sum(self.workers.replicas))

    @property
    def per_replica(self) -> int:
        """Number of rows of each of them."""
        return self.kept // self.replicas

    def parts_of(self, worker: int) -> tuple[int, int]:
        """Returns which parts a worker needs: the first, and the one behind the last."""
        if self.everywhere and self.replicas < sum(self.workers.replicas):
            return 0, self.replicas
        first = min(self.workers.first_replica(worker), self.replicas)
        return first, min(first + self.workers.replicas[worker], self.replicas)

    def common(self, owner: int, user: int) -> tuple[int, int]:
        """Returns which of the rows that `owner` has `user` needs: the first, and the one behind the last."""
        offset = sum(self.rows[:owner])
        first, end = (part * self.per_replica - offset for part in self.parts_of(user))
        return max(0, first), max(0, first, min(self.rows[owner], end))


def shared_out(sharing: Sharing, own: Any, form: Form, channel: WorkerChannel, name: str) -> Split:
    """Returns this worker's parts of a step; sends and receives rows where others have them.

    Args:
        sharing: How the rows are shared out.
        own: The rows of this worker; None if it has none.
        form: What the batches are like.
        channel: To the other workers.
        name: Name of the step; all workers use the same.
    """
    me = sharing.workers.index
    others = [worker for worker in range(sharing.workers.count) if worker != me]
    for worker in others:
        first, end = sharing.common(me, worker)
        if end > first:
            channel.send(worker, name, form.encode(_rows(own, first, end)))
    parts = []
    for worker in range(sharing.workers.count):
        first, end = sharing.common(worker, me)
        if end > first:
            mine = worker == me
            parts.append(_rows(own, first, end) if mine else form.decode(channel.receive(worker, name), end - first))
    batch = joined(parts) if parts else form.decode(b"", 0)
    first, end = sharing.parts_of(me)
    assert count_rows(batch) == (end - first) * sharing.per_replica
    shape = (end - first, sharing.per_replica)
    split = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)
    return Split(sharing.replicas, split, first)


def _rows(batch: Any, first: int, end: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[first:end], batch)
