"""Buffers in shared memory between a worker and a server: what goes with the calls, and what without them."""

from __future__ import annotations

import numpy as np
import pytest
import ray

from replicax.parameter_server.actors import wires
from replicax.parameter_server.actors.messages import Reply, ShardId
from replicax.parameter_server.actors.server_handles import Push, ServerHandles

SHARD = ShardId(0, 0)
NODE = ("node", 1)
LARGE = np.arange(50_000, dtype=np.float32)


def room(nbytes=2**30):
    return wires.Buffers(nbytes)


class MemoryChannel:
    """A mutable object of this process. It keeps what was written until that is read, as Ray's does."""

    def __init__(self, nbytes):
        self.nbytes, self.full, self.is_closed, self.writes = nbytes, None, False, 0

    def write(self, value):
        if self.is_closed or self.full is not None:
            return False
        self.full, self.writes = value, self.writes + 1
        return True

    def read(self):
        found, self.full = self.full, None
        return found


class Server:
    """A server that returns what it gets; methods have `remote`, as handles do."""

    def __init__(self):
        self.wires, self.with_call, self.opened, self.fails = wires.ServerWires(room()), [], 0, None

    def __getattr__(self, name):
        method = getattr(type(self), f"call_{name}")
        return type("Method", (), {"remote": staticmethod(lambda *args: method(self, *args))})

    def call_identity(self):
        return NODE

    def call_open_wire(self, wire, sent, worker, nbytes):
        self.opened += 1
        return self.wires.open(wire, sent, worker, nbytes)

    def call_push(self, program, step, pulled, sent, wanted, era, wire):
        if self.fails is not None:
            raise self.fails
        self.with_call.append(sent is not None)
        if wire is not None:
            sent = self.wires.take(wire, step)
        if sent is None:
            return Reply(1, None, is_unread=True)
        values = [2 * sent[0]]
        if wire is not None and self.wires.answer(wire, step, values):
            return Reply(1, None, is_wired=True)
        return Reply(1, {SHARD: values[0]})


@pytest.fixture
def buffers(monkeypatch):
    made = []

    def channel_to(reader, nbytes):
        made.append(MemoryChannel(nbytes))
        return made[-1]

    context = type("Context", (), {"get_node_id": lambda self: NODE[0], "current_actor": "worker"})
    monkeypatch.setattr(wires, "channel_to", channel_to)
    monkeypatch.setattr(wires, "write_within", lambda channel, value, timeout_s: channel.write(value))
    monkeypatch.setattr(wires, "read_within", lambda channel, timeout_s: channel.read())
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get", lambda found: found)
    monkeypatch.setattr(ray, "get_runtime_context", context)
    return made


def pushed(handles, step, array=LARGE, answer_bytes=None):
    size = array.nbytes if answer_bytes is None else answer_bytes
    reply = handles.push({0: Push(0, step, 0, [array], (SHARD,), size)})[0]
    np.testing.assert_array_equal(reply.values[SHARD], 2 * array)
    return reply


def test_arrays_go_through_two_buffers_that_are_made_once(buffers):
    server = Server()
    handles = ServerHandles(3, [server], 0, room())
    for step in range(4):
        pushed(handles, step)
    assert (server.with_call, server.opened, [each.writes for each in buffers]) == ([False] * 4, 1, [4, 4])


@pytest.mark.parametrize("size", [10, 2**25])
def test_small_and_very_large_arrays_go_with_the_call(buffers, size):
    server = Server()
    pushed(ServerHandles(0, [server], 0, room()), 0, np.ones(size, np.float32))
    assert (server.with_call, buffers) == ([True], [])


def test_a_larger_array_gets_larger_buffers(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    pushed(handles, 0)
    pushed(handles, 1, np.ones(4 * LARGE.size, np.float32))
    assert (server.with_call, server.opened) == ([False, False], 2)


def test_a_buffer_that_cannot_be_written_is_replaced(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    pushed(handles, 0)
    buffers[0].is_closed = True
    for step in (1, 2):
        pushed(handles, step)
    assert server.with_call == [False, False, False]  # The second wire takes the push, and the first is made anew.
    assert server.opened >= 2


def test_an_answer_that_does_not_fit_comes_with_the_call(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    pushed(handles, 0)
    buffers[1].is_closed = True
    reply = pushed(handles, 1)
    assert not reply.is_wired


def test_a_push_whose_arrays_are_lost_is_made_again_with_the_call(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    server.wires.take = lambda wire, step: None
    pushed(handles, 0)
    assert server.with_call == [False, True]


def test_after_a_failed_push_buffers_are_new(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    server.fails = ValueError("no")
    with pytest.raises(ValueError, match="no"):
        pushed(handles, 0)
    server.fails = None
    pushed(handles, 1)
    assert (server.with_call, server.opened) == ([False], 2)


def test_a_server_that_has_not_read_gets_new_buffers_and_all_is_as_before(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    take, server.wires.take = server.wires.take, lambda wire, step: None
    pushed(handles, 0)
    server.wires.take = take
    pushed(handles, 1)
    assert (server.with_call, server.opened, len(buffers)) == ([False, True, False], 2, 4)


def test_an_answer_that_was_not_read_does_not_hold_up_later_pushes(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    pushed(handles, 0)
    buffers[1].full = "an answer that nobody has read"
    assert not pushed(handles, 1).is_wired
    pushed(handles, 2)
    assert server.with_call == [False, False, False, True]  # The third push was not read: the server dropped the wire.


def test_buffers_are_never_read_in_the_name_of_another_life(buffers):
    server = Server()
    old, new = (wires.WorkerWire(0, 0, server, room()) for _ in range(2))
    first = old.send(7, [LARGE], LARGE.nbytes)
    second = new.send(7, [2 * LARGE], LARGE.nbytes)  # A worker that was started again tries the same step.
    assert first[:2] == second[:2]
    assert server.wires.take(first, 7) is None
    np.testing.assert_array_equal(server.wires.take(second, 7)[0], 2 * LARGE)


def test_an_answer_to_an_earlier_step_is_not_read_as_a_newer_one(buffers):
    server = Server()
    handles = ServerHandles(0, [server], 0, room())
    pushed(handles, 0)
    answer = server.wires.answer
    server.wires.answer = lambda wire, step, arrays: answer(wire, step - 1, [0 * arrays[0]])
    reply = pushed(handles, 1)
    assert not reply.is_wired
    assert server.with_call == [False, False, True]


@pytest.mark.parametrize("whose", ["worker", "server"])
def test_without_room_for_buffers_arrays_go_with_the_call(buffers, whose):
    server, little = Server(), room(LARGE.nbytes)
    if whose == "server":
        server.wires = wires.ServerWires(little)
    handles = ServerHandles(0, [server], 0, little if whose == "worker" else room())
    for step in range(3):
        pushed(handles, step)
    assert server.with_call == [True] * 3
    assert len(buffers) <= 2  # Each wire has tried once at most.


def test_buffers_have_no_more_memory_together_than_there_is_room(buffers):
    made = room(10 * LARGE.nbytes)
    found = [made.to("reader", LARGE.nbytes) for _ in range(20)]
    assert 0 < sum(buffer.nbytes for buffer in buffers) <= 10 * LARGE.nbytes
    assert None in found


def test_copies_are_aligned_as_xla_wants_them(buffers):
    buffer = room().to("reader", LARGE.nbytes)
    assert buffer.write(1, [LARGE[1:], np.float32(3)[...]])
    copy, number = buffer.read(1)
    assert copy.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copy, LARGE[1:])
    assert number.shape == ()
