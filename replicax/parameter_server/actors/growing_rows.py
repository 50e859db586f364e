"""`GrowingRows`: which id has which row of a growing table's shard, on the server that has the shard.

An id has no row before a step pushes a gradient for it. A worker that asks for its value gets what the initializer
makes of the id, and that is also what its row begins with. So asking changes nothing, and all that changes is part of
a push, which a server applies once. When no row is free, the rows of other ids are taken; such an id begins anew next
time.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.export
import numpy as np

from replicax.errors import CheckpointError
from replicax.parameter_server.actors.created_rows import halves
from replicax.parameter_server.actors.messages import ShardId
from replicax.tables.growing import FREE_ROW

FREE = FREE_ROW
#: The columns of the index: the id of a row (`FREE` if it has none), the push that used it last, how many pushes have
#: used it, and the push that made it.
ID, LAST, USES, SINCE = range(4)
_BY = {"lru": LAST, "lfu": USES, "age": SINCE}


@dataclasses.dataclass(frozen=True)
class GrowingShard:
    """One server's part of a growing table."""

    table: ShardId
    index: ShardId  # its value: `(rows, 4)` of int32
    # For the shards of the table and its slots, StableHLO of `(high, low) -> rows`: the first values of ids.
    initial: tuple[tuple[ShardId, bytes], ...]
    evict: str  # "lru", "lfu" or "age": by which column of the index rows are taken when none is free; see `_BY`
    part: int  # which of the shards this is
    shards: int


class GrowingRows:
    """The rows of a shard, and which ids have them."""

    def __init__(self, shard: GrowingShard):
        self._shard = shard
        self._initial = {each: jax.jit(jax.export.deserialize(bytearray(code)).call) for each, code in shard.initial}
        self.index = np.zeros((0, 4), np.int32)  # changed in place
        self._rows: dict[int, int] = {}
        self._free: list[int] = []
        self._pushes = 0

    def restore(self, index: np.ndarray) -> None:
        """Takes over the index of a new table or of a checkpoint; refuses one with ids of other servers."""
        self.index = np.array(index)
        used = np.flatnonzero(self.index[:, ID] != FREE)
        ids = self.index[used, ID]
        if (owners(ids, self._shard.shards) != self._shard.part).any():
            raise CheckpointError(
                "The checkpoint of a growing table has ids in the rows of other servers: it was written with another "
                f"number of servers than {self._shard.shards}. Restore it with as many, or begin with an empty table."
            )
        self._rows = dict(zip(ids.tolist(), used.tolist(), strict=True))
        self._free = np.flatnonzero(self.index[:, ID] == FREE)[::-1].tolist()
        self._pushes = int(self.index[:, LAST].max(initial=0))

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids; -1 for an id without one."""
        return np.fromiter((self._rows.get(each, FREE) for each in ids.tolist()), np.int64, len(ids))

    def read(self, values: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the values of ids, from the shard of the table; an id without a row has its first value."""
        rows = self.find(ids)
        found = values[rows]
        if (rows == FREE).any():
            found[rows == FREE] = self.first_values(self._shard.table, ids[rows == FREE])
        return found

    def first_values(self, shard: ShardId, ids: np.ndarray) -> np.ndarray:
        """Returns the first values of ids in one of the shards."""
        length = 1 << max(len(ids) - 1, 0).bit_length()  # compiled for few lengths only
        numbers = np.zeros(length, np.uint64)
        numbers[: len(ids)] = ids
        return np.asarray(self._initial[shard](*halves(numbers)))[: len(ids)]

    def admit(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gives distinct ids rows where they have none, and counts their use; returns the rows, and which are new."""
        rows = self.find(ids)
        is_new = rows == FREE
        self._pushes += 1
        self.index[rows[~is_new], LAST] = self._pushes  # None of them will be taken.
        missing = int(is_new.sum()) - len(self._free)
        if missing > 0:
            self._take_rows(missing)
        for i in np.flatnonzero(is_new).tolist():
            rows[i] = self._free.pop()
            self._rows[int(ids[i])] = int(rows[i])
        self.index[rows[is_new]] = np.stack(
            [ids[is_new], *(np.full(int(is_new.sum()), count) for count in (self._pushes, 0, self._pushes))], axis=1
        )
        self.index[rows, LAST] = self._pushes
        self.index[rows, USES] += 1
        return rows, is_new

    def _take_rows(self, count: int) -> None:
        """Frees rows that this push does not use."""
        candidates = np.flatnonzero((self.index[:, ID] != FREE) & (self.index[:, LAST] != self._pushes))
        keys = self.index[candidates, _BY[self._shard.evict]], self.index[candidates, LAST]
        taken = candidates[np.lexsort(keys[::-1])[:count]]
        for each in self.index[taken, ID].tolist():
            del self._rows[each]
        self.index[taken, ID] = FREE
        self._free += taken[::-1].tolist()

    @property
    def shards(self) -> tuple[ShardId, ...]:
        """The shards of the table and its slots."""
        return tuple(self._initial)


def owners(ids: np.ndarray, shards: int) -> np.ndarray:
    """Returns which shard has each id: a hash of the id, so that ids in steps are spread too."""
    mixed = ids.astype(np.uint32) * np.uint32(0x9E3779B1)  # 2**32 by the golden ratio (Knuth, TAOCP 6.4)
    return (mixed >> np.uint32(16)) % np.uint32(shards)
