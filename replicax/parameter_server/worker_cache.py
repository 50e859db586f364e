"""The variables that a worker has, with the versions of the servers that they came from."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import numpy as np

from replicax.parameter_server.messages import Piece, Reply, WorkerProgram


class Cache:
    """Values of pieces, for each server those of one version. Threads may use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[int, int] = {}
        self._values: dict[int, dict[Piece, np.ndarray]] = {}

    def has(self, server: int, pieces: Sequence[Piece], version: int) -> bool:
        """Returns whether it has these pieces of a version that is at least this new."""
        with self._lock:
            return self._has(server, pieces) and self._versions[server] >= version

    def version_of(self, server: int, pieces: Sequence[Piece]) -> int:
        """Returns the version of these pieces; -1 if some are missing."""
        with self._lock:
            return self._versions[server] if self._has(server, pieces) else -1

    def _has(self, server: int, pieces: Sequence[Piece]) -> bool:
        held = self._values.get(server)
        return held is not None and all(piece in held for piece in pieces)

    def store_all(self, replies: Mapping[int, Reply]) -> dict[int, int]:
        """Takes over what servers have answered, unless it has newer values; returns the versions that it has now."""
        with self._lock:
            for server, reply in replies.items():
                if reply.values is not None and reply.version >= self._versions.get(server, -1):
                    # Pieces that did not come are of another version: they have to be pulled when they are needed.
                    self._values[server], self._versions[server] = dict(reply.values), reply.version
            return dict(self._versions)

    def known(self) -> dict[int, int]:
        """Returns the version that it has of each server."""
        with self._lock:
            return dict(self._versions)

    def values(self, program: WorkerProgram) -> list[np.ndarray]:
        """Returns the variables of a program, those that are cut put together."""
        with self._lock:
            parts = [
                [self._values[server][piece] for server, piece in zip(each.servers, each.pieces, strict=True)]
                for each in program.variables
            ]
        return [each[0] if len(each) == 1 else np.concatenate(each) for each in parts]
