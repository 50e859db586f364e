"""The coordinator's view of the servers: their actors, and the variables that they have."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from replicax.errors import ParameterServerLost
from replicax.parameter_server.cluster import Cluster
from replicax.parameter_server.messages import Piece, ServerProgram
from replicax.parameter_server.server import ParameterServer, settings_for

_ALIVE_WITHIN_S = 10.0


class Servers:
    """The servers' actors.

    Args:
        cluster: Where they live.
        timeout_s: How long a server may take to answer, in seconds.

    Attributes:
        age: Counts whatever may have changed variables.
        recover: Replaces lost servers, told why; returns whether it could. Without it the loss is an error.
        written: For each server, its version after the coordinator wrote to it last.
    """

    def __init__(self, cluster: Cluster, timeout_s: float):
        self._cluster, self._timeout_s = cluster, timeout_s
        self.handles: list[Any] = [None] * cluster.servers
        self._identities: dict[int, tuple[str, int]] = {}
        self._programs: dict[int, list[ServerProgram]] = {server: [] for server in range(cluster.servers)}
        self.age = 0
        self.recover: Callable[[str], bool] = lambda reason: False
        self.written = [0] * cluster.servers
        self._lock = threading.RLock()
        self._closed = False
        self.start(range(cluster.servers))

    def __len__(self) -> int:
        return len(self.handles)

    def start(self, servers: Sequence[int] | range) -> None:
        """Starts (or replaces) servers, with the programs that they had and no variables."""
        import ray

        actor = ray.remote(ParameterServer)
        for server in servers:
            options = self._cluster.actor_options("ps", server)
            self.handles[server] = actor.options(**options).remote(settings_for(self._cluster))
            self.written[server] = 0
        for server in servers:
            self._identities[server] = self._wait(server, self.handles[server].identity.remote())
            self._wait(server, [self.handles[server].load.remote(program) for program in self._programs[server]])

    def load(self, programs: Mapping[int, ServerProgram]) -> None:
        """Gives servers a program each."""
        with self._lock:
            for server, program in programs.items():
                self._programs[server].append(program)
        self._surely(lambda: self._call("load", {server: (program,) for server, program in programs.items()}))

    def forget(self, number: int, servers: Sequence[int]) -> None:
        """Lets servers drop a program that nobody will run any more."""
        if self._closed:
            return
        for server in servers:
            with self._lock:
                self._programs[server] = [program for program in self._programs[server] if program.number != number]
            self.handles[server].drop.remote(number)

    def put(self, values: Mapping[int, Mapping[Piece, np.ndarray]]) -> None:
        """Sends variables to servers."""
        versions = self._surely(lambda: self._call("put", {server: (dict(each),) for server, each in values.items()}))
        for server, version in versions.items():
            self.written[server] = version

    def fetch(self, wanted: Sequence[tuple[int, Piece]]) -> list[np.ndarray]:
        """Returns pieces from the servers that have them."""
        pieces: dict[int, list[Piece]] = {}
        for server, piece in wanted:
            pieces.setdefault(server, []).append(piece)
        replies = self._surely(lambda: self._call("get", {server: (asked,) for server, asked in pieces.items()}))
        return [replies[server].values[piece] for server, piece in wanted]

    def fetch_rows(self, wanted: Sequence[tuple[int, Piece, np.ndarray]]) -> list[np.ndarray]:
        """Returns rows of pieces from the servers that have them."""
        pieces: dict[int, list[int]] = {}
        for i, (server, _, _) in enumerate(wanted):
            pieces.setdefault(server, []).append(i)
        asked = {server: ((), -1, [wanted[i][1:] for i in numbers]) for server, numbers in pieces.items()}
        replies = self._surely(lambda: self._call("get", asked))
        found = {i: row for server, ids in pieces.items() for i, row in zip(ids, replies[server].rows, strict=True)}
        return [found[i] for i in range(len(wanted))]

    def _call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        calls = {server: getattr(self.handles[server], method).remote(*args) for server, args in arguments.items()}
        return {server: self._wait(server, call) for server, call in calls.items()}

    def _surely(self, call: Callable[[], dict[int, Any]]) -> dict[int, Any]:
        """Returns what servers answer, after they have been replaced if one was lost."""
        try:
            return call()
        except ParameterServerLost as error:
            if not self.recover(str(error)):
                raise
        return call()

    def lost(self, timeout_s: float = _ALIVE_WITHIN_S) -> list[int]:
        """Returns which servers have gone or do not answer."""
        import ray

        calls = {server: handle.identity.remote() for server, handle in enumerate(self.handles)}
        answered, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s)
        return [server for server, call in calls.items() if call not in answered or not _is_result(call)]

    def end(self, servers: Sequence[int]) -> None:
        """Kills the processes of servers, also stopped ones."""
        for server in servers:
            self._cluster.end_process(*self._identities[server])

    def pids(self) -> dict[int, int]:
        """Returns the servers' process ids."""
        return {server: pid for server, (_, pid) in self._identities.items()}

    def close(self) -> None:
        """Ends all servers."""
        import ray

        self._closed = True
        for handle in self.handles:
            ray.kill(handle)

    def _wait(self, server: int, call: Any) -> Any:
        import ray

        try:
            return ray.get(call, timeout=self._timeout_s)
        except ray.exceptions.GetTimeoutError:
            raise ParameterServerLost(f"ps:{server} has not answered for {self._timeout_s:g} s.") from None
        except ray.exceptions.RayActorError as error:
            raise ParameterServerLost(
                f"ps:{server} has gone, and with it the variables that it had. Give the coordinator a "
                f"CheckpointManager, so that training goes on from the newest checkpoint. Ray said: {error}"
            ) from error


def _is_result(call: Any) -> bool:
    import ray

    try:
        ray.get(call)
    except ray.exceptions.RayError:
        return False
    return True
