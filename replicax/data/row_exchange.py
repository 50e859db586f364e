"""Exchanging rows between workers, for steps in which they do not have rows in proportion to their replicas.

The batch of such a step is all rows of all workers, in the order of the workers; it is split as a single process splits
a batch. Each worker sends the rows that others need, and nothing else. Only numbers are sent: nothing is unpickled.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import itertools
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np

from replicax.data.batch_split import SplitBatch, usable_replicas
from replicax.data.batches import count_rows
from replicax.data.rebatching import concatenated
from replicax.data.receivers import InputWorkers
from replicax.data.worker_channel import WorkerChannel
from replicax.errors import BatchError
from replicax.typing import PyTree


class BatchDescription(TypedDict):
    """All that is needed to make a batch of its numbers, in a form that JSON can hold."""

    tree: str  # the structure of the pytree, serialized; empty if it has classes of the user's
    text: str  # the structure of the pytree, for messages and comparisons
    leaves: list[tuple[str, list[int]]]  # the dtype of each leaf and the shape of one of its rows


def describe(batch: PyTree) -> BatchDescription:
    """Returns the description of a batch of host arrays."""
    leaves = jax.tree.leaves(batch)
    treedef: PyTree = jax.tree.structure(batch)  # JAX types it too narrowly.
    try:
        tree = base64.b64encode(treedef.serialize_using_proto()).decode()
    except ValueError:  # A class of the user's: only a process that has seen such a batch can make another.
        tree = ""
    return {
        "tree": tree,
        "text": str(treedef),
        "leaves": [(np.dtype(leaf.dtype).name, list(leaf.shape[1:])) for leaf in leaves],
    }


class BatchStructure:
    """The structure, the dtypes and the shapes of rows that the batches of a step have."""

    def __init__(self, description: BatchDescription, tree: jax.tree_util.PyTreeDef | None = None):
        self._leaves = [(jnp.dtype(name), tuple(shape)) for name, shape in description["leaves"]]
        if tree is not None and str(tree) == description["text"]:  # This worker has had such batches.
            self._treedef = tree
        elif description["tree"]:
            registry = jax.tree_util.default_registry
            self._treedef = jax.tree_util.PyTreeDef.deserialize_using_proto(
                registry, base64.b64decode(description["tree"])
            )
        else:
            raise BatchError(
                f"This worker has no data, and the batches of the others hold classes ({description['text']}) that "
                "cannot be made from their description. Use tuples, lists and dicts, or give each worker some data."
            )

    def encode(self, batch: PyTree) -> bytes:
        """Returns the numbers of a batch."""
        return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in jax.tree.leaves(batch))

    def decode(self, message: bytes, rows: int) -> PyTree:
        """Returns the batch of `rows` rows with these numbers."""
        memory, leaves, start = np.frombuffer(message, np.uint8), [], 0
        for dtype, shape in self._leaves:
            size = rows * dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            leaves.append(memory[start : start + size].view(dtype).reshape(rows, *shape))
            start += size
        return jax.tree.unflatten(self._treedef, leaves)


class _Part(NamedTuple):
    """Rows of one worker's batch that another one needs, or that it needs itself."""

    worker: int  # the other one
    first: int
    end: int  # after the last


@dataclasses.dataclass(frozen=True)
class RowAssignment:
    """Which rows of a step go to which worker."""

    workers: InputWorkers
    rows: tuple[int, ...]  # that each worker has read
    kept: int  # how many of all rows are used: always the first ones
    everywhere: bool = False  # whether every worker needs all rows if not all replicas take part

    @functools.cached_property
    def replicas(self) -> int:
        """How many replicas take part."""
        return usable_replicas(self.kept, sum(self.workers.replicas))

    @functools.cached_property
    def per_replica(self) -> int:
        """Number of rows of each of them."""
        return self.kept // self.replicas

    @functools.cached_property
    def _offsets(self) -> list[int]:
        return [*itertools.accumulate(self.rows, initial=0)]

    def parts_of(self, worker: int) -> tuple[int, int]:
        """Returns which parts a worker needs: the index of the first, and the index after the last."""
        if self.everywhere and self.replicas < self.workers.first_replica(self.workers.count):
            return 0, self.replicas
        first, end = self.workers.replicas_fed(worker)
        return min(first, self.replicas), min(end, self.replicas)

    def common(self, owner: int, user: int) -> tuple[int, int]:
        """Returns which rows of `owner` the worker `user` needs: the index of the first and the one after the last."""
        first, end = (part * self.per_replica - self._offsets[owner] for part in self.parts_of(user))
        return max(0, first), max(0, first, min(self.rows[owner], end))

    @functools.cached_property
    def own_parts(self) -> tuple[int, int]:
        """The parts that this worker needs."""
        return self.parts_of(self.workers.index)

    @functools.cached_property
    def sent(self) -> list[_Part]:
        """Returns the rows of this worker that others need."""
        me = self.workers.index
        return [_Part(user, *found) for user in self.workers.others if _any(found := self.common(me, user))]

    @functools.cached_property
    def needed(self) -> list[_Part]:
        """Returns the rows that this worker needs, in their order, and who has them."""
        me = self.workers.index
        owners = range(self.workers.count)
        return [_Part(owner, *found) for owner in owners if _any(found := self.common(owner, me))]


def _any(rows: tuple[int, int]) -> bool:
    return rows[1] > rows[0]


def exchange_rows(
    assignment: RowAssignment, own: PyTree, structure: BatchStructure, channel: WorkerChannel, name: str
) -> SplitBatch:
    """Returns this worker's parts of a step; sends and receives rows where other workers have them."""
    me = assignment.workers.index
    for worker, first, end in assignment.sent:
        channel.send(worker, name, structure.encode(_rows(own, first, end)))
    parts = [
        _rows(own, first, end) if worker == me else structure.decode(channel.receive(worker, name), end - first)
        for worker, first, end in assignment.needed
    ]
    batch = concatenated(parts) if parts else structure.decode(b"", 0)
    first, end = assignment.own_parts
    assert count_rows(batch) == (end - first) * assignment.per_replica
    shape = (end - first, assignment.per_replica)
    split = jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)
    return SplitBatch(assignment.replicas, split, first, lasts=True)


def _rows(batch: PyTree, first: int, end: int) -> PyTree:
    return batch if end - first == count_rows(batch) else jax.tree.map(lambda leaf: leaf[first:end], batch)
