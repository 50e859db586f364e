"""The coordinator's view of the servers: their actors, and the variables that they have."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from replicax.cluster.patience import Patience
from replicax.errors import ParameterServerLost
from replicax.parameter_server.actors.actor_errors import closed, is_actor_lost, own_error
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.actors.growing_rows import GrowingShard
from replicax.parameter_server.actors.messages import ServerProgram, ShardId
from replicax.parameter_server.actors.parameter_server import ParameterServer, settings_for
from replicax.parameter_server.scheduling.handles import RemoteAnswer, ServerHandle, ServerIdentity, ray_handle
from replicax.ray_cluster import RayCluster
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.ending_actors import end_actor

T = TypeVar("T")
Asked = TypeVar("Asked")
_TICK_S = 0.25  # between looks at the deadline
_SECONDS_BETWEEN_LOOKS = 0.02  # at a recovery in another thread
_MOST_RECOVERIES = 10  # Servers may be lost while they are being replaced, but not forever.


class ServerActors:
    """The servers' actors, and access to the variables that they have."""

    def __init__(self, cluster: RayCluster, patience: Patience):
        self._cluster, self.patience = cluster, patience
        self.handles: list[ServerHandle] = []
        self._identities: dict[int, ServerIdentity] = {}
        self._programs: dict[int, list[ServerProgram | GrowingShard]] = {
            server: [] for server in range(cluster.servers)
        }
        self._restorer: int | None = None
        self._lives = [0] * cluster.servers
        # Counts of what may have changed variables, of recoveries, and of their begins and ends: odd during one.
        self.age = self.era = self.restorations = 0
        self.recover: Callable[[str], bool] = lambda reason: False  # replaces lost servers; returns whether it could
        self.written = [0] * cluster.servers  # the version of each after the coordinator wrote to it last
        self._lock = threading.RLock()
        self._closed = False
        self.failure: BaseException | None = None  # why lost servers could not be replaced
        self.start(range(cluster.servers))

    def __len__(self) -> int:
        return len(self.handles)

    @property
    def _timeout_s(self) -> float:
        return max(self.patience.start, self.patience.stall)  # A server that is starting does not answer.

    def start(self, servers: Sequence[int], starting: Callable[[int], None] = lambda server: None) -> None:
        """Starts (or replaces) servers, with the programs that they had and no variables."""
        import ray

        self.check()
        made: dict[int, ServerHandle] = {}

        def create() -> None:
            actor = ray.remote(ParameterServer)
            for server in servers:
                options = self._cluster.actor_options("ps", server)
                handle: Any = actor.options(**options).remote(settings_for(self._cluster))
                made[server] = handle

        if not done_within(self._timeout_s, create):
            names = ", ".join(f"ps:{server}" for server in servers)
            raise ParameterServerLost(
                f"Ray has not taken the order to start {names} within {self._timeout_s:g} s. The machine that it is "
                "ruled from, that of ps:0, may be out of reach."
            )
        handles = dict(enumerate(self.handles)) | made
        self.handles = [handles[server] for server in sorted(handles)]
        for server in servers:
            self._identities.pop(server, None)
            self._lives[server] += 1
            self.written[server] = 0
            starting(server)
        for server in servers:
            handle = self.handles[server]
            self._identities.update(_answers({server: handle.identity.remote()}, self._timeout_s))
            with self._lock:
                programs = list(self._programs[server])
            for loading in [handle.load.remote(program) for program in programs]:
                _answers({server: loading}, self._timeout_s)

    def check(self) -> None:
        """Raises if variables have no values any more."""
        if self._closed:
            raise closed()
        if self.failure is not None:
            raise self.failure

    def begin_era(self) -> None:
        """Lets servers forget which steps were applied: they count again, after a recovery."""
        self.era += 1
        self.age += 1  # A value that is being read at this moment is not the newest any more.
        self._ask(dict.fromkeys(range(len(self)), self.era), lambda handle, era: handle.begin_era.remote(era))

    def ping(self, server: int, life: int) -> Future[ServerIdentity] | None:
        """Asks a server for a sign of life; returns None if this life of it is over."""
        if self._closed or self._lives[server] != life:
            return None
        return self.handles[server].identity.remote().future()

    def load(self, programs: Mapping[int, ServerProgram | GrowingShard]) -> None:
        """Gives servers a program each, or tells them of a table that grows."""
        with self._lock:
            for server, program in programs.items():
                self._programs[server].append(program)
        self.with_recovery(lambda: self._ask(programs, lambda handle, program: handle.load.remote(program)))

    def forget(self, id: int, servers: Sequence[int]) -> None:
        """Lets servers drop a program that nobody will run any more."""
        if self._closed:
            return
        for server in servers:
            with self._lock:
                others = [each for each in self._programs[server] if getattr(each, "number", None) != id]
                self._programs[server] = others
            self.handles[server].drop.remote(id)

    def put(self, values: Mapping[int, Mapping[ShardId, np.ndarray | CreatedRows]]) -> None:
        """Sends variables to servers. Call it by `with_recovery`: after a recovery there are other values to send."""
        for server, version in self._ask(values, lambda handle, pieces: handle.put.remote(dict(pieces))).items():
            self.written[server] = version

    def fetch(self, wanted: Sequence[tuple[int, ShardId]]) -> list[np.ndarray]:
        """Returns pieces from the servers that have them."""
        pieces: dict[int, list[ShardId]] = {}
        for server, piece in wanted:
            pieces.setdefault(server, []).append(piece)
        replies = self.with_recovery(lambda: self._ask(pieces, lambda handle, asked: handle.get.remote(asked)))
        values = {server: reply.values or {} for server, reply in replies.items()}
        return [values[server][piece] for server, piece in wanted]

    def fetch_rows(self, wanted: Sequence[tuple[int, ShardId, np.ndarray]]) -> list[np.ndarray]:
        """Returns rows of pieces from the servers that have them."""
        pieces: dict[int, list[int]] = {}
        for i, (server, _, _) in enumerate(wanted):
            pieces.setdefault(server, []).append(i)
        rows = {server: [wanted[i][1:] for i in ids] for server, ids in pieces.items()}
        replies = self.with_recovery(lambda: self._ask(rows, lambda handle, asked: handle.get.remote((), -1, asked)))
        found = {i: row for server, ids in pieces.items() for i, row in zip(ids, replies[server].rows, strict=True)}
        return [found[i] for i in range(len(wanted))]

    def _ask(self, asked: Mapping[int, Asked], call: Callable[[ServerHandle, Asked], RemoteAnswer[T]]) -> dict[int, T]:
        """Returns what each of these servers answers to what it is asked."""
        self.check()
        return _answers({server: call(self.handles[server], each) for server, each in asked.items()}, self._timeout_s)

    def with_recovery(self, call: Callable[[], T]) -> T:
        """Returns what servers answer, after they have been replaced if one was lost."""
        for _ in range(_MOST_RECOVERIES):
            self.wait_until_restored()
            before = self.restorations
            try:
                answer = call()
            except ParameterServerLost as error:
                if not self.recover(str(error)):
                    raise
            except Exception:
                if before == self.restorations:
                    raise  # Otherwise a server that has just been started may not have had its variables yet.
            else:
                if before == self.restorations:
                    return answer
        return call()

    def begin_restoring(self) -> None:
        """Lets other threads wait while this one gives all variables the values of a checkpoint, in several tries."""
        if self._restorer is None:
            self._restorer = threading.get_ident()
            self.restorations += 1

    def end_restoring(self) -> None:
        """Lets the others go on."""
        if self._restorer is not None:
            self.restorations += 1
            self._restorer = None

    def wait_until_restored(self) -> None:
        """Returns when no recovery is under way, except in the thread that does it; raises if none comes to its end."""
        while self.restorations % 2 and self._restorer != threading.get_ident():
            self.check()
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def lost(self, timeout_s: float) -> list[int]:
        """Returns which servers have gone or do not answer."""
        self.check()
        calls = {server: handle.identity.remote().future() for server, handle in enumerate(self.handles)}
        _wait_for(calls.values(), timeout_s)
        return [server for server, call in calls.items() if not call.done() or call.exception() is not None]

    def end(self, servers: Sequence[int]) -> None:
        """Kills the processes of servers, also stopped ones, as far as Ray can be reached."""
        for server in [] if self._closed else servers:
            identity = self._identities.get(server)
            if end_actor(ray_handle(self.handles[server]), self.patience) and identity is not None:
                self._cluster.end_process(*identity)

    def end_life(self, server: int, life: int) -> None:
        """Kills a server's process, if it has not been replaced already."""
        if self._lives[server] == life:
            self.end([server])

    def pids(self) -> dict[int, int]:
        """Returns the servers' process ids."""
        return {server: pid for server, (_, pid) in list(self._identities.items())}

    def close(self) -> None:
        import ray

        self._closed = True
        done_within(self.patience.silence, lambda: [ray.kill(ray_handle(handle)) for handle in self.handles])


def _answers(calls: Mapping[int, RemoteAnswer[T]], timeout_s: float) -> dict[int, T]:
    """Returns what servers answer to calls that have been sent."""
    return {server: _answer(server, call.future(), timeout_s) for server, call in calls.items()}


def _answer(server: int, future: Future[T], timeout_s: float) -> T:
    if not _wait_for([future], timeout_s):
        raise ParameterServerLost(f"ps:{server} has not answered for {timeout_s:g} s.")
    error = future.exception()
    if error is None:
        return future.result()
    if not is_actor_lost(error):
        raise own_error(error)
    raise ParameterServerLost(
        f"ps:{server} has gone, and with it the variables that it had. Ray said: {error}"
    ) from error


def _wait_for(futures: Iterable[Future[T]], timeout_s: float) -> bool:
    """Waits for all of these; returns whether they have come. Unlike `ray.get`, it hears Ctrl-C whatever Ray does."""
    deadline = time.monotonic() + timeout_s
    left = set(futures)
    while left and (seconds := deadline - time.monotonic()) > 0:
        _, left = concurrent.futures.wait(left, min(seconds, _TICK_S))
    return not left
