"""Arrays between a worker and a server of one host: two buffers in shared memory beside the calls.

A call of an actor is a small message then. The arrays lie in mutable objects of Ray's object store, one for each
direction, which are made once and written again and again: no object is made, sealed and looked up for each step. The
call comes after its arrays and the answer after those that it returns, so nobody waits for arrays that do not come. A
buffer that cannot be read or written is not used again; the arrays go with the call, as they do between two hosts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
import numpy as np

from replicax.typing import PyTree

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.experimental.channel.shared_memory_channel import Channel

#: Identifies the writer to a server: the worker's index, which of its wires this is, how many times it was opened.
WireId: TypeAlias = tuple[int, int, int]

_LEAST_BYTES, _MOST_BYTES = 100 * 2**10, 64 * 2**20  # Small arrays go well with a call; large ones need the memory.
_ROOM = 1.25  # so that a few more rows of a table need no new buffer
_FOR_SHAPES = 64 * 2**10
_WAIT_S = 5.0  # The other side is done with a buffer before it answers.
_ALIGNMENT = 64  # XLA uses such arrays of NumPy as they are.


def may_be_wired(nbytes: int) -> bool:
    """Returns whether so many bytes are worth a buffer of their own, and not too many for it."""
    return _LEAST_BYTES <= nbytes <= _MOST_BYTES


class Buffer:
    """One direction: arrays that one actor writes and another one, on the same node, reads.

    Args:
        channel: The mutable object.
        capacity: How many bytes of arrays fit into it.
    """

    def __init__(self, channel: Channel, capacity: int):
        self._channel, self.capacity = channel, capacity

    @classmethod
    def to(cls, reader: ActorHandle, nbytes: int) -> Buffer:
        """Makes a buffer that this actor writes for another one."""
        import ray
        from ray.experimental.channel.shared_memory_channel import Channel

        context, capacity = ray.get_runtime_context(), int(_ROOM * nbytes)
        own: ActorHandle = context.current_actor
        return cls(Channel(own, [(reader, context.get_node_id())], capacity + _FOR_SHAPES), capacity)

    def write(self, number: int, arrays: PyTree) -> bool:
        """Writes arrays for the step of that number; returns whether the reader was done with those before."""
        import ray

        try:
            self._channel.write((number, arrays), timeout=_WAIT_S)
        except (ray.exceptions.RayChannelError, ray.exceptions.RayChannelTimeoutError):
            return False
        return True

    def read(self, number: int) -> PyTree | None:
        """Returns a copy of what was written for the step of that number; None if that is not there."""
        import ray

        try:
            found, arrays = self._channel.read(timeout=_WAIT_S)
        except (ray.exceptions.RayChannelError, ray.exceptions.RayChannelTimeoutError):
            return None
        return jax.tree_util.tree_map(_aligned_copy, arrays) if found == number else None


class ServerWires:
    """The buffers of a server, two for each worker on its host."""

    def __init__(self) -> None:
        self._wires: dict[tuple[int, int], tuple[int, Buffer, Buffer]] = {}

    def open(self, wire: WireId, sent: Buffer, worker: ActorHandle, nbytes: int) -> Buffer:
        """Takes a worker's buffer, in the place of an earlier one; returns the one for the answers."""
        back = Buffer.to(worker, nbytes)
        self._wires[wire[:2]] = wire[2], sent, back
        return back

    def take(self, wire: WireId, step: int) -> list[PyTree] | None:
        """Returns what a worker has written for a step; None if it is not there."""
        number, sent, _ = self._wires.get(wire[:2], (None, None, None))
        return sent.read(step) if number == wire[2] and sent is not None else None

    def answer(self, wire: WireId, step: int, arrays: Sequence[np.ndarray]) -> bool:
        """Writes arrays for a worker; returns whether it has got them."""
        _, _, back = self._wires[wire[:2]]
        return sum(array.nbytes for array in arrays) <= back.capacity and back.write(step, list(arrays))


class WorkerWire:
    """A worker's buffers to and from one server; one push at a time uses them.

    Args:
        worker: The worker's index.
        number: Which of the worker's wires to this server it is.
        server: The server.
    """

    def __init__(self, worker: int, number: int, server: ActorHandle):
        self._worker, self._number, self._server = worker, number, server
        self._opened = 0
        self._lock = threading.Lock()
        self._sent: Buffer | None = None
        self._back: Buffer | None = None
        self._is_near: bool | None = None

    def send(self, step: int, arrays: Sequence[PyTree], answer_bytes: int) -> WireId | None:
        """Writes arrays for the server; returns what the call has to name, None if the arrays have to go with it.

        `receive` or `give_up` has to follow.
        """
        nbytes = sum(array.nbytes for array in jax.tree_util.tree_leaves(arrays))
        if not may_be_wired(nbytes) or not may_be_wired(answer_bytes) or not self._lock.acquire(blocking=False):
            return None
        try:
            if self._is_on_this_node():
                if self._buffer(nbytes, answer_bytes).write(step, list(arrays)):
                    return self._worker, self._number, self._opened
                self._sent = self._back = None
        except BaseException:
            self.give_up()
            raise
        self._lock.release()
        return None

    def receive(self, step: int) -> list[np.ndarray] | None:
        """Returns the arrays of the answer to a step; None if they are not there."""
        assert self._back is not None
        found: list[np.ndarray] | None = self._back.read(step)
        return found

    def done(self) -> None:
        """Lets the next push use the buffers."""
        self._lock.release()

    def give_up(self) -> None:
        """Lets the next push make new buffers: what is in these is not known."""
        self._sent = self._back = None
        self._lock.release()

    def _is_on_this_node(self) -> bool:
        import ray

        if self._is_near is None:
            asked: ObjectRef[tuple[str, int]] = self._server.identity.remote()
            node, _ = ray.get(asked)
            self._is_near = node == ray.get_runtime_context().get_node_id()
        return self._is_near

    def _buffer(self, nbytes: int, answer_bytes: int) -> Buffer:
        import ray

        sent, back = self._sent, self._back
        if sent is None or back is None or nbytes > sent.capacity or answer_bytes > back.capacity:
            own = ray.get_runtime_context().current_actor
            self._opened += 1
            sent = Buffer.to(self._server, nbytes)
            wire = self._worker, self._number, self._opened
            opened: ObjectRef[Buffer] = self._server.open_wire.remote(wire, sent, own, answer_bytes)
            self._sent, self._back = sent, ray.get(opened)
        return sent


def _aligned_copy(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
