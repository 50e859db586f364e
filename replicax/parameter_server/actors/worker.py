"""`Worker`: takes steps, pulls variables, computes, and pushes what the servers need. It has no user code.

`RemoteWorker` is one as an actor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from replicax.errors import ArgumentError
from replicax.parameter_server.actors.actor_errors import Raised, raised
from replicax.parameter_server.actors.messages import (
    ArraySpecs,
    Done,
    InputSource,
    Reply,
    Report,
    SentValue,
    ServerLost,
    SetUp,
    ShardId,
    StepCall,
    UnexpectedBatch,
    WorkerProgram,
)
from replicax.parameter_server.actors.parameter_server import ParameterServer, buffers_by, identity, take_over
from replicax.parameter_server.actors.server_handles import Push, ServerHandles
from replicax.parameter_server.actors.worker_data import WorkerData
from replicax.parameter_server.actors.worker_program import LoadedProgram, TableLookUp
from replicax.typing import PyTree

if TYPE_CHECKING:
    from ray.actor import ActorHandle

_Sent: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]  # an array, or some of its rows with their indices


class Worker:
    """The state of one worker. It may run two steps at once: one computes while the other one pushes."""

    def __init__(
        self, index: int, servers: Sequence[ActorHandle[ParameterServer]], settings: Mapping[str, object], era: int = 0
    ):
        take_over(settings)
        self._index = index
        self._buffers = buffers_by(settings)
        self._servers = ServerHandles(self._index, servers, era, self._buffers)
        self._data = WorkerData(index)
        self._programs: dict[int, LoadedProgram] = {}
        self._cache = VariableCache()
        self._computing = threading.Lock()
        self._set_up = _SetUpQueue()
        self._tasks: dict[str, Callable[..., None]] = {
            "program": self._load,
            "dataset": self._make_dataset,
            "iterator": self._make_iterator,
            "resource": self._make_resource,
            "servers": self._use_servers,
            "drop": self._drop,
        }

    # Before steps.

    def set_up(self, number: int, task: SetUp) -> None:
        """Does task `number` once all tasks before it are done; if it fails, the steps that need it raise its error."""
        # Calls come in any order. One that comes early must not wait: the calls that it waits for might find no thread.
        if not self._set_up.add(number, task):
            return
        while (next_task := self._set_up.turn()) is not None:
            try:
                self._tasks[next_task.kind](*next_task.args)
            except Exception as error:
                provided = next_task.kind if next_task.provides is None else next_task.provides
                self._set_up.failures[provided] = error
            self._set_up.end()

    def _load(self, program: WorkerProgram) -> None:
        self._programs[program.number] = LoadedProgram(program)

    def _make_dataset(self, number: int, pickled: bytes) -> None:
        self._data.make_dataset(number, self._unpickled(pickled, "dataset_fn"))

    def _make_iterator(self, number: int, dataset: int) -> None:
        self._set_up.check(dataset)
        self._data.make_iterator(number, dataset)

    def _make_resource(self, number: int, pickled: bytes) -> None:
        self._data.make_resource(number, self._unpickled(pickled, "resource_fn"))

    def _unpickled(self, pickled: bytes, name: str) -> Callable[[], PyTree]:
        import ray.cloudpickle

        try:
            function: Callable[[], PyTree] = ray.cloudpickle.loads(pickled)
        except Exception as error:
            raise ArgumentError(
                f"`{name}` cannot be unpickled on worker {self._index}: {error!r}. It was pickled on the coordinator; "
                "workers need the modules that it uses, in the same versions."
            ) from error
        return function

    def _use_servers(self, servers: Sequence[ActorHandle[ParameterServer]], era: int) -> None:
        with self._computing:
            self._servers = ServerHandles(self._index, servers, era, self._buffers)
            self._cache = VariableCache()

    def _drop(self, *provided: int | tuple[str, int]) -> None:
        for each in provided:
            if isinstance(each, tuple):
                self._programs.pop(each[1], None)
            else:
                self._data.drop(each)

    def structure(self, kind: str, number: int, set_up: int) -> tuple[jax.tree_util.PyTreeDef, ArraySpecs]:
        """Returns the structure, shapes and dtypes of the next batch of an iterator, or of a resource."""
        self._set_up.wait_for(set_up)
        self._set_up.check(number)
        return self._data.structure(kind, number)

    def resource(self, number: int, set_up: int) -> list[np.ndarray]:
        """Returns the arrays of a resource."""
        self._set_up.wait_for(set_up)
        self._set_up.check(number)
        return self._data.resource(number)

    def report(self) -> Report:
        """Returns the worker's node, process and platform, and how many set-up tasks are done."""
        return Report(*identity(), jax.default_backend(), self._set_up.done)

    # Steps.

    def run(self, step: StepCall) -> Done | UnexpectedBatch | ServerLost:
        """Makes a step: pull, compute, push."""
        self._set_up.wait_for(step.set_up)
        self._set_up.check("servers")
        self._set_up.check(("program", step.program))
        loaded = self._programs[step.program]
        clock = _StepTimer()
        with self._computing:
            servers = self._servers
            inputs = self._inputs(loaded.program, step)
            clock.note("input")
            if isinstance(inputs, UnexpectedBatch):
                return inputs
            try:
                look_ups = loaded.look_ups(inputs)
                asked, pulled = self._pull(loaded, step, look_ups)
            except servers.lost as error:
                return ServerLost(str(error))
            versions = self._versions(loaded)
            clock.note("pull")
            results, sent = loaded(self._cache.values(loaded.program), look_ups, inputs)
            self._data.take(loaded.program.turns())
            results = self._data.keep(loaded.program.keeps, results)
            clock.note("compute")
        try:
            behind, pushed, back = self._push(servers, loaded, step, _parts(loaded, look_ups, sent), versions)
        except servers.lost as error:
            return ServerLost(str(error))
        clock.note("push")
        return Done(results, self._cache.newest(), behind, clock.seconds, pulled + back, asked + pushed)

    def _versions(self, loaded: LoadedProgram) -> dict[int, int]:
        """Returns, for each server, the version of the variables from which a step is computed."""
        newest = self._cache.newest()
        read = {server: self._cache.version_of(server, shards) for server, shards in loaded.wanted.items()}
        return {server: read.get(server, newest.get(server, 0)) for server in loaded.program.sends}

    def _inputs(self, program: WorkerProgram, step: StepCall) -> list[jax.typing.ArrayLike] | UnexpectedBatch:
        """Returns the inputs of a program. Its batches are not consumed yet: the step may have to be tried again."""
        batches: dict[tuple[int, int], list[np.ndarray]] = {}
        for source in program.inputs:
            if source.kind in ("batch", "resource"):
                self._set_up.check(source.number)
            if source.kind == "batch" and (source.number, source.turn) not in batches:
                batches[source.number, source.turn] = self._data.batch(source.number, source.turn)
        for (iterator, _), arrays in batches.items():
            specs = tuple((array.shape, array.dtype) for array in arrays)
            if specs != program.specs[iterator]:
                return UnexpectedBatch(iterator)
        return [self._input(source, step, batches) for source in program.inputs]

    def _input(
        self, source: InputSource, step: StepCall, batches: dict[tuple[int, int], list[np.ndarray]]
    ) -> jax.typing.ArrayLike:
        if source.kind == "batch":
            return batches[source.number, source.turn][source.leaf]
        if source.kind == "argument":
            return step.arrays[source.number]
        if source.kind == "resource":
            return self._data.resource(source.number)[source.leaf]
        return np.int32(self._index)

    def _pull(self, loaded: LoadedProgram, step: StepCall, look_ups: Sequence[TableLookUp]) -> tuple[int, int]:
        """Pulls the variables and rows that the cache lacks; returns the bytes of the ids sent, and of what arrived."""
        wanted = {
            server: _RowRequest(look_ups, server) for server in {s for each in look_ups for s in each.table.servers}
        }
        pulls = {}
        for server in {*loaded.wanted, *wanted}:
            shards, rows = loaded.wanted.get(server, ()), wanted[server].asked if server in wanted else ()
            version = self._cache.version_of(server, shards)
            fresh = not shards or (not step.pull and version >= step.at_least[server])
            if rows or not fresh:
                pulls[server] = (() if fresh else shards, version, rows)
        replies = self._servers.get(pulls)
        for server, reply in replies.items():
            self._cache.store(server, reply)
            if server in wanted:
                wanted[server].take(reply.rows)
        asked = sum(each.nbytes for each in wanted.values())
        return asked, sum(reply.nbytes for reply in replies.values())

    def _push(
        self,
        servers: ServerHandles,
        loaded: LoadedProgram,
        step: StepCall,
        parts: dict[int, list[_Sent]],
        versions: dict[int, int],
    ) -> tuple[dict[int, int], int, int]:
        wanted = loaded.wanted if step.ahead else {}
        pushes = {
            server: Push(
                step.program,
                step.number,
                versions[server],
                sent,
                wanted.get(server, ()) if step.ahead else None,
                self._cache.nbytes(server, wanted.get(server, ())),
            )
            for server, sent in parts.items()
        }
        replies = servers.push(pushes)
        for server, reply in replies.items():
            self._cache.store(server, reply)
        read = {*loaded.wanted, *(server for table in loaded.program.tables for server in table.servers)}
        behind = {server: reply.behind for server, reply in replies.items() if server in read and not reply.repeated}
        pushed = sum(push.nbytes for push in pushes.values())
        return behind, pushed, sum(reply.nbytes for reply in replies.values())


def _parts(loaded: LoadedProgram, look_ups: Sequence[TableLookUp], sent: list[np.ndarray]) -> dict[int, list[_Sent]]:
    """Returns what to send to each server."""

    def part(each: SentValue) -> _Sent:
        if each.table is not None:
            assert each.bounds is not None
            return look_ups[each.table].sent(sent[each.result], each.bounds)
        return sent[each.result] if each.bounds is None else sent[each.result][slice(*each.bounds)]

    return {server: [part(each) for each in parts] for server, parts in loaded.program.sends.items()}


class _RowRequest:
    """The rows that one server is asked for."""

    def __init__(self, look_ups: Sequence[TableLookUp], server: int):
        self._places = [
            (look_up, where, shard, numbers)
            for look_up in look_ups
            for shard, numbers, where in look_up.requests().get(server, ())
        ]
        self.asked = tuple((shard, numbers) for _, _, shard, numbers in self._places)
        self.nbytes = sum(numbers.nbytes for _, numbers in self.asked)

    def take(self, rows: Sequence[np.ndarray]) -> None:
        for (look_up, where, _, _), found in zip(self._places, rows, strict=True):
            look_up.rows[where] = found


class _SetUpQueue:
    """The set-up tasks of a worker, in order: which are done, and which have failed."""

    def __init__(self) -> None:
        self.failures: dict[Hashable, Exception] = {}
        self.done = 0
        self._waiting: dict[int, SetUp] = {}
        self._is_busy = False
        self._changed = threading.Condition()

    def add(self, number: int, task: SetUp) -> bool:
        """Adds a task; returns whether the caller has to do the tasks that `turn` returns, or another thread does."""
        with self._changed:
            self._waiting[number] = task
            has_to = not self._is_busy
            self._is_busy = True
            return has_to

    def turn(self) -> SetUp | None:
        """Returns the next task; None if it has not come yet."""
        with self._changed:
            found = self._waiting.pop(self.done, None)
            self._is_busy = found is not None  # The thread that adds the next task has to do it.
            return found

    def end(self) -> None:
        with self._changed:
            self.done += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Waits until the first `count` tasks are done; all of them are on their way."""
        with self._changed:
            self._changed.wait_for(lambda: self.done >= count)

    def check(self, provided: Hashable) -> None:
        """Raises the error of the task that should have made something that a step needs."""
        if provided in self.failures:
            raise self.failures[provided]


class _StepTimer:
    """Measures the time of each phase of a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def note(self, what: str) -> None:
        now = time.perf_counter()
        self.seconds[what] = now - self._last
        self._last = now


# `VariableCache`: the variables that a worker has, with the versions of the servers that they came from.


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


CALLS_AT_ONCE = 8  # two steps, and what comes between: looking at batches
WATCH, SET_UP = "watch", "set_up"
# They have threads of their own: a worker that computes still answers, and steps do not block what they wait for.
THREADS = {WATCH: 1, SET_UP: 1}


class RemoteWorker(Worker):
    """A worker in a process of its own. It returns errors instead of raising them, so that they keep their types."""

    def run(self, step: StepCall) -> Done | UnexpectedBatch | ServerLost | Raised:  # type: ignore[override]
        try:
            return super().run(step)
        except Exception as error:
            return raised(error)

    def structure(  # type: ignore[override]
        self, kind: str, number: int, set_up: int
    ) -> tuple[jax.tree_util.PyTreeDef, ArraySpecs] | Raised:
        try:
            return super().structure(kind, number, set_up)
        except Exception as error:
            return raised(error)

    def resource(self, number: int, set_up: int) -> list[np.ndarray] | Raised:  # type: ignore[override]
        try:
            return super().resource(number, set_up)
        except Exception as error:
            return raised(error)
