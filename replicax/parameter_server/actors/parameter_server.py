"""`ParameterServer`: an actor that stores variables and applies what workers push, one push after the other."""

from __future__ import annotations

import collections
import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from replicax.compat.jax_processes import backends_have_started
from replicax.parameter_server.actors.created_rows import CreatedRows
from replicax.parameter_server.actors.growing_rows import GrowingRows, GrowingShard
from replicax.parameter_server.actors.messages import Reply, ServerProgram, ShardId
from replicax.parameter_server.actors.wires import Buffer, Buffers, ServerWires, WireId
from replicax.parameter_server.actors.worker_program import CompiledProgram, compiled, padded
from replicax.ray_cluster.memory import object_store_memory
from replicax.typing import PyTree

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from replicax.ray_cluster import RayCluster

_REMEMBERED_STEPS = 100_000
_REMEMBERED_PUTS = 100
_THREADS, _BUFFER_BYTES = "NPROC", "buffer_bytes"
_SHARE_OF_BUFFERS = 0.5  # of the object store; the rest is for arrays that go with calls
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")


class ParameterServer:
    """The state of one server. Its methods run one at a time, so that each push is applied as a whole."""

    def __init__(self, settings: Mapping[str, object]):
        jax.config.update("jax_platforms", "cpu")
        take_over(settings)
        self._values: dict[ShardId, jax.Array] = {}
        self._programs: dict[int, tuple[ServerProgram, CompiledProgram]] = {}
        self._growing: dict[ShardId, GrowingRows] = {}  # by the shard of the table
        self._indices: dict[ShardId, GrowingRows] = {}  # by the shard of its index
        self._version = 0
        self._puts: collections.deque[int] = collections.deque([0], maxlen=_REMEMBERED_PUTS)
        self._applied: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._era = 0
        self._wires = ServerWires(buffers_by(settings))

    def load(self, program: ServerProgram | GrowingShard) -> None:
        """Compiles a program ahead of its first push, or lets a table grow: its shard's rows are then named by ids."""
        if isinstance(program, GrowingShard):
            self._grow(program)
            return
        self._programs[program.number] = program, compiled(program.code, donate=[0])

    def drop(self, program: int) -> None:
        self._programs.pop(program, None)

    def begin_era(self, era: int) -> None:
        """Forgets the applied steps, since a checkpoint is restored; late pushes of earlier eras are not applied."""
        self._era = era
        self._applied.clear()

    def put(self, values: Mapping[ShardId, np.ndarray | CreatedRows]) -> int:
        """Replaces or creates variables; returns the version from which on workers see them."""
        for shard, value in values.items():
            self._values[shard] = value.compute() if isinstance(value, CreatedRows) else jax.numpy.array(value)
            if shard in self._indices:
                self._indices[shard].restore(np.asarray(self._values[shard]))
        self._version += 1
        self._puts.append(self._version)
        return self._version

    def get(self, shards: Iterable[ShardId], known: int = -1, rows: Sequence[tuple[ShardId, np.ndarray]] = ()) -> Reply:
        """Returns shards, or no values if nothing has changed since version `known`; and rows of other shards."""
        looked_up = tuple(self._looked_up(shard, numbers) for shard, numbers in rows)
        if known == self._version:
            return Reply(self._version, None, looked_up)
        return Reply(self._version, {shard: self._value(shard) for shard in shards}, looked_up)

    def _looked_up(self, shard: ShardId, numbers: np.ndarray) -> np.ndarray:
        values = np.asarray(self._values[shard])
        return self._growing[shard].read(values, numbers) if shard in self._growing else values[numbers]

    def _value(self, shard: ShardId) -> np.ndarray:
        if shard in self._indices:
            return self._indices[shard].index.copy()
        return np.asarray(self._values[shard])

    def _grow(self, shard: GrowingShard) -> None:
        growing = GrowingRows(shard)
        self._growing[shard.table] = self._indices[shard.index] = growing
        if shard.index in self._values:
            growing.restore(np.asarray(self._values[shard.index]))

    def push(
        self,
        program: int,
        step: int,
        pulled: int,
        sent: Sequence[np.ndarray] | None,  # None if it is in the buffer of `wire`
        wanted: Sequence[ShardId] | None,
        era: int = 0,
        wire: WireId | None = None,
    ) -> Reply:
        """Applies a step, unless it has been applied before, and returns the variables that the worker wants next."""
        if wire is not None:
            sent = self._wires.take(wire, step)
        if sent is None:
            return Reply(self._version, None, is_unread=True)
        reply = self._pushed(program, step, pulled, sent, wanted, era)
        if wire is not None and reply.values and self._wires.answer(wire, step, list(reply.values.values())):
            return dataclasses.replace(reply, values=None, is_wired=True)
        return reply

    def open_wire(self, wire: WireId, sent: Buffer, worker: ActorHandle, nbytes: int) -> Buffer | None:
        """Takes the buffer of a worker on this host; returns the one for so many bytes of answers, if there is room."""
        return self._wires.open(wire, sent, worker, nbytes)

    def _pushed(
        self,
        program: int,
        step: int,
        pulled: int,
        sent: Sequence[np.ndarray],
        wanted: Sequence[ShardId] | None,
        era: int,
    ) -> Reply:
        if era != self._era:
            return Reply(self._version, None, is_stale=True)
        # Only steps count, not what the coordinator has assigned meanwhile.
        behind = self._version - pulled - sum(version > pulled for version in self._puts)
        repeated = step in self._applied
        if not repeated:
            self._apply(program, sent)
            self._applied[step] = None
            if len(self._applied) > _REMEMBERED_STEPS:
                self._applied.popitem(last=False)
        values = None if wanted is None else {shard: self._value(shard) for shard in wanted}
        return Reply(self._version, values, behind=behind, repeated=repeated)

    def _apply(self, number: int, sent: Sequence[np.ndarray]) -> None:
        program, run = self._programs[number]
        grown = program.grown or (None,) * len(sent)
        rows = [self._with_rows(*pair) for pair in zip(sent, grown, strict=True)]
        updated = [self._values[shard] for shard in program.updated]
        others = [self._values[shard] for shard in program.others]
        new = run(updated, others, rows)
        self._values.update(zip(program.updated, new, strict=True))
        self._version += 1

    def _with_rows(self, sent: PyTree, grown: ShardId | None) -> PyTree:
        """Returns a value that a worker has sent as a program takes it; ids of a growing table get their rows."""
        if not isinstance(sent, tuple):
            return sent
        numbers, gradient = sent
        if grown is None:
            return padded(numbers, gradient)
        growing = self._growing[grown]
        rows, is_new = growing.admit(numbers)
        if is_new.any():
            for shard in growing.shards:
                first = padded(rows[is_new], growing.first_values(shard, numbers[is_new]))
                self._values[shard] = _with_new_rows(self._values[shard], *first)
        return padded(rows, gradient)

    def identity(self) -> tuple[str, int]:
        """Returns the Ray node and the process that this server runs in."""
        return identity()


@functools.partial(jax.jit, donate_argnums=[0])
def _with_new_rows(table: jax.Array, numbers: jax.Array, rows: jax.Array) -> jax.Array:
    return table.at[numbers].set(rows.astype(table.dtype), mode="drop")


def settings_for(cluster: RayCluster) -> dict[str, object]:
    """Returns settings for a cluster's actors: JAX's that affect results, and limits of memory and threads."""
    settings: dict[str, object] = {name: getattr(jax.config, name) for name in _SETTINGS}
    settings[_BUFFER_BYTES] = int(_SHARE_OF_BUFFERS * object_store_memory() / (cluster.workers + cluster.servers))
    # All actors share the cores of one machine.
    if cluster.is_local:
        settings[_THREADS] = max(1, (os.cpu_count() or 1) // (cluster.workers + cluster.servers))
    return settings


def take_over(settings: Mapping[str, object]) -> None:
    """Applies settings to this process, before it has computed anything."""
    for name, value in settings.items():
        if name in _SETTINGS:
            jax.config.update(name, value)
        elif name == _THREADS and not backends_have_started():
            os.environ[_THREADS] = str(value)  # XLA reads it.


def buffers_by(settings: Mapping[str, object]) -> Buffers:
    """Returns what makes the buffers of an actor, with as much memory as the settings say."""
    room = settings.get(_BUFFER_BYTES, 0)
    assert isinstance(room, int)
    return Buffers(room)


def identity() -> tuple[str, int]:
    """Returns the Ray node and the process of an actor."""
    import ray

    return ray.get_runtime_context().get_node_id(), os.getpid()
