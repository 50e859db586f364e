"""The door of an elastic job, and those who come to it."""

import contextlib
import json
import queue
import signal
import socket

import pytest

from replicax.cluster.addresses import Address, parse_address
from replicax.remote.events import Events, FoundSilent, Joined, MemberNews, ProcessEnded
from replicax.remote.guests import LONGEST_LINE, Door

LIMIT_S = 20.0


class Visitor:
    """A launcher that comes to a door."""

    def __init__(self, door):
        address = parse_address(door.address, "")
        self.connection = socket.create_connection(address, timeout=LIMIT_S)
        self.lines = self.connection.makefile("rb")

    def says(self, **message):
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def hears(self):
        line = self.lines.readline()
        return json.loads(line) if line else None

    def close(self):
        self.lines.close()
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def door(events):
    made = Door(Address("127.0.0.1", 0), "secret", events)
    yield made
    made.close()


@pytest.fixture
def visitor(door):
    made = Visitor(door)
    yield made
    made.close()


@pytest.fixture
def guest(visitor, events):
    """A guest that has been admitted."""
    visitor.says(join=1, token="secret", host="afar", wanted=5)
    joined = events.get(timeout=LIMIT_S)
    assert isinstance(joined, Joined)
    joined.process.admit(3, {"REPLICAX_LIFE": "1"})
    assert visitor.hears() == {"index": 3, "environment": {"REPLICAX_LIFE": "1"}}
    return joined.process


def test_who_knows_the_token_gets_a_place(guest):
    assert (guest.host, guest.wanted, guest.task.name, guest.is_guest) == ("afar", 5, "worker 3", True)


@pytest.mark.parametrize("wanted", [None, -1, "3", True, 2**40])
def test_an_index_that_is_none_is_not_wanted(visitor, events, wanted):
    visitor.says(join=1, token="secret", wanted=wanted)
    assert events.get(timeout=LIMIT_S).process.wanted is None


@pytest.mark.parametrize("token", ["wrong", "", None, ["secret"]])
def test_who_does_not_know_the_token_is_sent_away(visitor, events, token):
    visitor.says(join=1, token=token)
    assert visitor.hears() == {"no": "its token (REPLICAX_TOKEN) is not that of the job"}
    assert visitor.hears() is None
    assert events.empty()


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b"\xff\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_message_of_ours_ends_the_connection(visitor, events, line):
    visitor.connection.sendall(line)
    assert visitor.hears() is None
    assert events.empty()


def test_a_line_without_an_end_is_not_read_for_ever(visitor, events):
    with contextlib.suppress(OSError):
        visitor.connection.sendall(b"x" * (2 * LONGEST_LINE))
    with contextlib.suppress(ConnectionResetError):
        assert visitor.hears() is None
    assert events.empty()


def test_it_tells_of_its_process_and_of_the_others(visitor, guest, events):
    visitor.says(pid=77)
    visitor.says(world=4, lives=[[0, 0], [3, 1]])
    visitor.says(leaving="preempted")
    visitor.says(silent="worker 2", life=0)
    visitor.says(leaves=True)
    visitor.says(ended=75, words="bye")
    assert [events.get(timeout=LIMIT_S) for _ in range(4)] == [
        MemberNews(guest, started_at="afar"),
        MemberNews(guest, 4, ((0, 0), (3, 1))),
        MemberNews(guest, leaving="preempted"),
        FoundSilent("worker 2", 0),
    ]
    visitor.close()
    ended = events.get(timeout=LIMIT_S)
    assert isinstance(ended, ProcessEnded)
    assert ended.process is guest
    assert (guest.pid, guest.has_left, guest.last_words, guest.tidy_up()) == (77, True, "bye", 75)


def test_a_lost_connection_is_a_lost_worker(visitor, guest, events):
    visitor.close()
    assert events.get(timeout=LIMIT_S).process is guest
    assert guest.tidy_up() == 128 + signal.SIGHUP


def test_signals_travel(visitor, guest):
    guest.send(signal.SIGTERM)
    assert visitor.hears() == {"signal": signal.SIGTERM}


def test_who_is_killed_has_ended_at_once(visitor, guest, events):
    guest.kill()
    assert visitor.hears() == {"signal": signal.SIGKILL}
    assert visitor.hears() is None
    assert isinstance(events.get(timeout=LIMIT_S), ProcessEnded)
    assert guest.tidy_up() == -signal.SIGKILL


def test_who_is_refused_hears_why(visitor, events):
    visitor.says(join=1, token="secret")
    events.get(timeout=LIMIT_S).process.refuse("the training is done")
    assert visitor.hears() == {"no": "the training is done"}
    assert visitor.hears() is None


def test_a_closed_door_lets_nobody_in(events):
    door = Door(Address("127.0.0.1", 0), "secret", events)
    door.close()
    with pytest.raises(ConnectionRefusedError):
        Visitor(door)
    with pytest.raises(queue.Empty):
        events.get_nowait()
