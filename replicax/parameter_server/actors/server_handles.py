"""The servers' actors, as a worker calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax

from replicax.compat.ray_channels import has_channels
from replicax.parameter_server.actors.messages import Reply, ShardId
from replicax.parameter_server.actors.parameter_server import ParameterServer
from replicax.parameter_server.actors.wires import Buffers, WireId, WorkerWire
from replicax.typing import PyTree

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

_PUSHES_AT_ONCE = 2  # A worker has two steps; both may be pushing.


class Push(NamedTuple):
    """The values that a worker has computed for one server."""

    program: int
    step: int
    pulled: int  # the version of the variables from which the values were computed
    sent: Sequence[PyTree]  # the values, in the order in which the server's program takes them
    wanted: tuple[ShardId, ...] | None  # the shards to return
    answer_bytes: int  # size of these shards

    @property
    def nbytes(self) -> int:
        """Size of the values in bytes."""
        return sum(part.nbytes for part in jax.tree_util.tree_leaves(self.sent))


class EraOverError(Exception):
    """Servers have been recovered, so what was computed before is void; never reaches the user."""


class ServerHandles:
    """The servers' actors, as a worker calls them."""

    def __init__(self, worker: int, handles: Sequence[ActorHandle[ParameterServer]], era: int, buffers: Buffers):
        import ray

        self.era = era
        self._handles, self._get = list(handles), ray.get
        # The errors of a call whose server is lost, or has lost what was before.
        self.lost = (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError, EraOverError)
        # Only processes of a Ray cluster have its shared memory.
        count = _PUSHES_AT_ONCE if ray.is_initialized() and has_channels() else 0
        self._wires = [[WorkerWire(worker, number, handle, buffers) for number in range(count)] for handle in handles]

    def get(self, pulls: Mapping[int, tuple[object, ...]]) -> dict[int, Reply]:
        """Pulls from several servers at once; returns their answers."""
        calls = [self._handles[server].get.remote(*args) for server, args in pulls.items()]
        return dict(zip(pulls, self._get(calls), strict=True))

    def push(self, pushes: Mapping[int, Push]) -> dict[int, Reply]:
        """Pushes to several servers at once; returns their answers."""
        wired: dict[int, tuple[WorkerWire, WireId]] = {}
        try:
            for server, push in pushes.items():
                used = next((pair for wire in self._wires[server] if (pair := _sent_by(wire, push))), None)
                wired.update({} if used is None else {server: used})
            calls = [self._call(server, push, wired.get(server)) for server, push in pushes.items()]
            replies = dict(zip(pushes, self._get(calls), strict=True))
            for server, (wire, _) in list(wired.items()):
                reply = self._received(wire, pushes[server], replies[server])
                if reply is not None:
                    wire.done()
                    del wired[server]
                replies[server] = reply or self._again(server, pushes[server], replies[server])
        finally:
            for wire, _ in wired.values():  # of a push that has failed, or whose arrays have not arrived
                wire.give_up()
        if any(reply.is_stale for reply in replies.values()):
            raise EraOverError("Lost servers have been replaced since this step was computed.")
        return replies

    def _call(self, server: int, push: Push, wired: tuple[WorkerWire, WireId] | None) -> ObjectRef[Reply]:
        program, step, pulled, computed, wanted, _ = push
        sent, wire = (computed, None) if wired is None else (None, wired[1])
        call: ObjectRef[Reply] = self._handles[server].push.remote(program, step, pulled, sent, wanted, self.era, wire)
        return call

    def _received(self, wire: WorkerWire, push: Push, reply: Reply) -> Reply | None:
        """Returns an answer with its values; None if those of the push or of the answer have not arrived."""
        if not reply.is_wired:
            return None if reply.is_unread else reply
        values = wire.receive(push.step)
        if values is None:
            return None
        assert push.wanted is not None
        return dataclasses.replace(reply, values=dict(zip(push.wanted, values, strict=True)))

    def _again(self, server: int, push: Push, reply: Reply) -> Reply:
        """Makes a push again, with the call; a step that was applied is not applied again."""
        again: Reply = self._get(self._call(server, push, None))
        return dataclasses.replace(again, behind=reply.behind, repeated=reply.repeated) if reply.is_wired else again


def _sent_by(wire: WorkerWire, push: Push) -> tuple[WorkerWire, WireId] | None:
    used = wire.send(push.step, push.sent, push.answer_bytes)
    return None if used is None else (wire, used)
