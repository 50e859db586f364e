"""`VariableCache`: the variables that a worker has, with the versions of the servers that they came from."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from replicax.parameter_server.actors.messages import Reply, ShardId, WorkerProgram


class VariableCache:
    """Values of shards, each with the version of its server at that time. It is thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, ShardId], tuple[int, np.ndarray]] = {}
        self._newest: dict[int, int] = {}

    def version_of(self, server: int, shards: Sequence[ShardId]) -> int:
        """Returns the version of the oldest of these shards; -1 if one is missing."""
        with self._lock:
            return min((self._held[server, p][0] if (server, p) in self._held else -1 for p in shards), default=-1)

    def nbytes(self, server: int, shards: Sequence[ShardId]) -> int:
        """Returns the size in bytes of those of a server's shards that are here."""
        with self._lock:
            return sum(self._held[server, shard][1].nbytes for shard in shards if (server, shard) in self._held)

    def store(self, server: int, reply: Reply) -> None:
        """Stores the values that a server has answered, where they are newer."""
        with self._lock:
            self._newest[server] = max(reply.version, self._newest.get(server, -1))
            for shard, value in (reply.values or {}).items():
                if reply.version >= self._held.get((server, shard), (-1,))[0]:
                    self._held[server, shard] = reply.version, value

    def newest(self) -> dict[int, int]:
        """Returns the newest version of each server that has been heard of."""
        with self._lock:
            return dict(self._newest)

    def values(self, program: WorkerProgram) -> list[np.ndarray]:
        """Returns the variables of a program; shards are concatenated."""
        with self._lock:
            parts = [
                [self._held[server, shard][1] for server, shard in zip(each.servers, each.shards, strict=True)]
                for each in program.variables
            ]
        return [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]
