"""Arrays between a worker and a server of one host: two buffers in shared memory beside the calls.

A call of an actor is a small message then. The arrays lie in mutable objects of Ray's object store, one for each
direction, which are made once and written again and again: no object is made, sealed and looked up for each step. The
call comes after its arrays and the answer after those that it returns, so nobody waits for arrays that do not come, and
the two processes are never at one buffer at the same time. A buffer that cannot be read or written is not used again;
the arrays go with the call, as they do between two hosts. Each pair of buffers has a number of its own, also in another
life of its worker and in another era of the servers: what was meant for one pair is not read from another.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

import jax
import numpy as np

from replicax.compat.ray_channels import Channel, channel_to, read_within, write_within
from replicax.ray_cluster.deadline import PATIENCE
from replicax.typing import PyTree

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

#: Names a pair of buffers to a server: the worker's index, which of its wires this is, and the pair's number.
WireId: TypeAlias = tuple[int, int, int]

_LEAST_BYTES, _MOST_BYTES = 100 * 2**10, 64 * 2**20  # Small arrays go well with a call; large ones need the memory.
_ROOM = 1.25  # so that a few more rows of a table need no new buffer
_FOR_SHAPES = 64 * 2**10
_ALIGNMENT = 64  # XLA uses such arrays of NumPy as they are.
_NUMBER_BITS = 62


def may_be_wired(nbytes: int) -> bool:
    """Returns whether so many bytes are worth a buffer of their own, and not too many for it."""
    return _LEAST_BYTES <= nbytes <= _MOST_BYTES


class Buffer:
    """One direction: arrays that one actor writes and another one, on the same node, reads."""

    def __init__(self, channel: Channel, capacity: int):
        self._channel, self.capacity = channel, capacity

    def write(self, number: int, arrays: PyTree) -> bool:
        """Writes arrays for the step of that number; returns whether the reader was done with those before."""
        return write_within(self._channel, (number, arrays), PATIENCE.silence)

    def read(self, number: int) -> PyTree | None:
        """Returns a copy of what was written for the step of that number; None if that is not there."""
        found, arrays = cast("tuple[int | None, PyTree]", read_within(self._channel, PATIENCE.silence) or (None, None))
        return jax.tree_util.tree_map(_aligned_copy, arrays) if found == number else None


class Buffers:
    """Makes the buffers that an actor writes, of `room` bytes in all: Ray frees none of them before the actor ends."""

    def __init__(self, room: int):
        self._left = room
        self._lock = threading.Lock()

    def to(self, reader: ActorHandle, nbytes: int) -> Buffer | None:
        """Makes a buffer for another actor; None if there is no room for it."""
        capacity = int(_ROOM * nbytes)
        with self._lock:
            if capacity + _FOR_SHAPES > self._left:
                return None
            self._left -= capacity + _FOR_SHAPES
        channel = channel_to(reader, capacity + _FOR_SHAPES)
        return None if channel is None else Buffer(channel, capacity)


class ServerWires:
    """The buffers of a server, two for each wire of a worker on its host."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._wires: dict[tuple[int, int], tuple[int, Buffer, Buffer]] = {}

    def open(self, wire: WireId, sent: Buffer, worker: ActorHandle, nbytes: int) -> Buffer | None:
        """Takes a worker's buffer, in the place of an earlier one; returns the one for the answers, None without it."""
        self._wires.pop(wire[:2], None)
        back = self._buffers.to(worker, nbytes)
        if back is not None:
            self._wires[wire[:2]] = wire[2], sent, back
        return back

    def take(self, wire: WireId, step: int) -> list[PyTree] | None:
        """Returns what a worker has written for a step; None if it is not there."""
        number, sent, _ = self._wires.get(wire[:2], (None, None, None))
        if sent is None or number != wire[2]:
            return None
        found: list[PyTree] | None = sent.read(step)
        return found

    def answer(self, wire: WireId, step: int, arrays: Sequence[np.ndarray]) -> bool:
        """Writes arrays for a worker; returns whether it has got them."""
        _, _, back = self._wires[wire[:2]]
        if sum(array.nbytes for array in arrays) > back.capacity:
            return False
        if back.write(step, list(arrays)):
            return True
        del self._wires[wire[:2]]  # so that no other push waits for it
        return False


class WorkerWire:
    """A worker's buffers to and from one server; one push at a time uses them."""

    def __init__(self, worker: int, number: int, server: ActorHandle, buffers: Buffers):
        self._worker, self._number, self._server, self._buffers = worker, number, server, buffers
        self._lock = threading.Lock()
        self._pair: tuple[int, Buffer, Buffer] | None = None
        self._is_usable: bool | None = None

    def send(self, step: int, arrays: Sequence[PyTree], answer_bytes: int) -> WireId | None:
        """Writes arrays for the server; returns what the call has to name, None if the arrays have to go with it."""
        nbytes = sum(array.nbytes for array in jax.tree_util.tree_leaves(arrays))
        if not may_be_wired(nbytes) or not may_be_wired(answer_bytes) or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._may_be_used() and (pair := self._pair_for(nbytes, answer_bytes)) is not None:
                number, sent, _ = pair
                if sent.write(step, list(arrays)):
                    # The lock is held until `done` or `give_up`, one of which must follow; `receive` may come before.
                    return self._worker, self._number, number
                self._pair = None
        except BaseException:
            self.give_up()
            raise
        self._lock.release()
        return None

    def receive(self, step: int) -> list[np.ndarray] | None:
        """Returns the arrays of the answer to a step; None if they are not there."""
        assert self._pair is not None
        found: list[np.ndarray] | None = self._pair[2].read(step)
        return found

    def done(self) -> None:
        """Lets the next push use the buffers."""
        self._lock.release()

    def give_up(self) -> None:
        """Lets the next push make new buffers: what is in these is not known."""
        self._pair = None
        self._lock.release()

    def _may_be_used(self) -> bool:
        import ray

        if self._is_usable is None:
            asked: ObjectRef[tuple[str, int]] = self._server.identity.remote()
            node, _ = ray.get(asked)
            self._is_usable = node == ray.get_runtime_context().get_node_id()
        return self._is_usable

    def _pair_for(self, nbytes: int, answer_bytes: int) -> tuple[int, Buffer, Buffer] | None:
        """Returns buffers that are large enough; None if there is no room for them."""
        import ray

        if self._pair is not None and nbytes <= self._pair[1].capacity and answer_bytes <= self._pair[2].capacity:
            return self._pair
        self._pair = None
        sent = self._buffers.to(self._server, nbytes)
        if sent is None:
            return None
        number, own = secrets.randbits(_NUMBER_BITS), ray.get_runtime_context().current_actor
        wire = self._worker, self._number, number
        opened: ObjectRef[Buffer | None] = self._server.open_wire.remote(wire, sent, own, answer_bytes)
        back = ray.get(opened)
        if back is None:
            self._is_usable = False  # The server has no room left, and gets none.
            return None
        self._pair = number, sent, back
        return self._pair


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
