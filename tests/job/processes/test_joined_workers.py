"""The join listener of an elastic job, and those who come to it."""

import concurrent.futures
import contextlib
import json
import queue
import signal
import socket
import time

import pytest

from replicax.cluster.addresses import Address, parse_address
from replicax.cluster.token_proof import LONGEST_LINE, Strangers, demanded, proved
from replicax.job.processes.events import ClusterLeft, Events, FoundSilent, Joined, MemberNews, ProcessEnded, Started
from replicax.job.supervision.joined_workers import PATIENCE, JoinListener

LIMIT_S = 20.0


class Visitor:
    """A launcher that comes to a join listener."""

    def __init__(self, join_listener):
        address = parse_address(join_listener.address, "")
        self.connection = socket.create_connection(address, timeout=LIMIT_S)
        self.session = None

    def asks(self, **message):
        """Proves that it knows the token, and asks for a place."""
        self.session = proved(self.connection, "secret", LIMIT_S)
        self.says(**message)

    def says(self, **message):
        self.session.tell(message)

    def hears(self):
        with contextlib.suppress(ConnectionResetError):
            return self.session.hear(time.monotonic() + LIMIT_S)

    def is_dropped(self):
        self.connection.settimeout(LIMIT_S)
        with contextlib.suppress(ConnectionResetError):
            return self.connection.recv(1) == b""
        return True

    def close(self):
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def strangers():
    return None


@pytest.fixture
def join_listener(events, strangers):
    made = JoinListener(Address("127.0.0.1", 0), "secret", events, strangers=strangers)
    yield made
    made.close()


@pytest.fixture
def visitor(join_listener):
    made = Visitor(join_listener)
    yield made
    made.close()


@pytest.fixture
def joined_worker(visitor, events):
    """A joined worker that has been admitted."""
    visitor.asks(host="afar", wanted=5)
    joined = events.get(timeout=LIMIT_S)
    assert isinstance(joined, Joined)
    joined.process.admit(3, {"REPLICAX_LIFE": "1"})
    assert visitor.hears() == {"index": 3, "environment": {"REPLICAX_LIFE": "1"}}
    return joined.process


def test_who_knows_the_token_gets_a_place(joined_worker):
    assert (joined_worker.host, joined_worker.wanted, joined_worker.task.name) == ("afar", 5, "worker 3")


@pytest.mark.daily(2)
@pytest.mark.parametrize("wanted", [None, -1, "3", True, 2**40])
def test_an_index_that_is_none_is_not_wanted(visitor, events, wanted):
    visitor.asks(wanted=wanted)
    assert events.get(timeout=LIMIT_S).process.wanted is None


@pytest.mark.parametrize("token", ["wrong", "", "secret "])
def test_who_does_not_know_the_token_is_sent_away(visitor, events, token):
    with pytest.raises(ConnectionRefusedError, match=r"its token \(REPLICAX_TOKEN\) is not that of the job"):
        proved(visitor.connection, token, LIMIT_S)
    assert visitor.is_dropped()
    assert events.empty()


@pytest.mark.parametrize("told", [{"join": 1, "token": "secret"}, {"join": 2}, {"join": 2, "nonce": "0"}])
def test_a_greeting_of_another_kind_lets_nobody_in(visitor, events, told):
    visitor.connection.sendall(json.dumps(told).encode() + b"\n")
    while visitor.connection.recv(1000):
        pass
    assert events.empty()


@pytest.mark.parametrize("answer", ["reflected", "invented", "none"])
def test_a_false_door_does_not_get_a_session_and_never_sees_the_token(answer):
    visitor, his = socket.socketpair()
    with visitor, his, concurrent.futures.ThreadPoolExecutor(1) as pool:
        session = pool.submit(proved, visitor, "secret", LIMIT_S)
        his.settimeout(LIMIT_S)
        heard = his.makefile("rb")
        hello = heard.readline()
        his.sendall(json.dumps({"nonce": json.loads(hello)["nonce"]}).encode() + b"\n")
        shown = heard.readline()
        said = {"reflected": json.loads(shown), "invented": {"proof": "0" * 64}, "none": {"index": 0}}[answer]
        his.sendall(json.dumps(said).encode() + b"\n")
        with pytest.raises(ValueError, match="does not know the job's token"):
            session.result(LIMIT_S)
        assert b"secret" not in hello + shown


@pytest.mark.parametrize("changed", ["forged", "repeated", "sent back", "left out"])
def test_who_sits_between_can_change_no_message(changed):
    visitor, his = socket.socketpair()
    his_far, host = socket.socketpair()
    with visitor, his, his_far, host, concurrent.futures.ThreadPoolExecutor(2) as pool:
        sessions = pool.submit(proved, visitor, "secret", LIMIT_S), pool.submit(demanded, host, "secret")
        near, far = his.makefile("rb"), his_far.makefile("rb")
        for _ in range(2):
            his_far.sendall(near.readline())
            his.sendall(far.readline())
        joined_workers, hosts = (session.result(LIMIT_S) for session in sessions)
        hosts.tell({"signal": 15})
        first = far.readline()
        hosts.tell({"signal": 9})
        second = far.readline()
        joined_workers.tell({"pid": 1})
        bad = {
            "forged": first.replace(b"15", b"19"),
            "repeated": first + first,
            "sent back": near.readline(),
            "left out": second,
        }[changed]
        his.sendall(bad)
        if changed == "repeated":
            assert joined_workers.hear() == {"signal": 15}
        with pytest.raises(ValueError, match="a message that the other side did not write"):
            joined_workers.hear(time.monotonic() + LIMIT_S)


@pytest.mark.parametrize("strangers", [Strangers(60.0, 8)], ids=["eight"])  # Their number drops them, not the time.
def test_silent_strangers_keep_nobody_out_and_are_dropped(join_listener, visitor, joined_worker, events):
    with contextlib.ExitStack() as stack:
        strangers = [Visitor(join_listener) for _ in range(100)]
        for stranger in strangers:
            stack.callback(stranger.close)
        late = Visitor(join_listener)
        stack.callback(late.close)
        late.asks(host="late")
        assert events.get(timeout=LIMIT_S).process.host == "late"
        assert all(stranger.is_dropped() for stranger in strangers[:-8])
        visitor.says(pid=77)
        assert events.get(timeout=LIMIT_S) == Started(joined_worker, 77, "afar")


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b"\xff\n", b"GET / HTTP/1.1\r\n\r\n"])
def test_what_is_no_message_of_ours_ends_the_connection(visitor, events, line):
    visitor.connection.sendall(line)
    assert visitor.is_dropped()
    assert events.empty()


def test_a_line_without_an_end_is_not_read_for_ever(visitor, events):
    with contextlib.suppress(OSError):
        visitor.connection.sendall(b"x" * (2 * LONGEST_LINE))
    assert visitor.is_dropped()
    assert events.empty()


def test_it_tells_of_its_process_and_of_the_others(visitor, joined_worker, events):
    visitor.says(pid=77)
    visitor.says(world=4, lives=[[0, 0], [3, 1]])
    visitor.says(leaving="preempted")
    visitor.says(silent="worker 2", life=0)
    visitor.says(leaves=True)
    visitor.says(ended=75, words="bye")
    assert [events.get(timeout=LIMIT_S) for _ in range(5)] == [
        Started(joined_worker, 77, "afar"),
        MemberNews(joined_worker, 4, ((0, 0), (3, 1))),
        MemberNews(joined_worker, leaving="preempted"),
        FoundSilent("worker 2", 0),
        ClusterLeft(joined_worker),
    ]
    visitor.close()
    ended = events.get(timeout=LIMIT_S)
    assert isinstance(ended, ProcessEnded)
    assert ended.process is joined_worker
    assert (joined_worker.pid, joined_worker.has_left, joined_worker.last_words, joined_worker.tidy_up()) == (
        77,
        True,
        "bye",
        75,
    )


def test_a_lost_connection_is_a_lost_worker(visitor, joined_worker, events):
    visitor.close()
    assert events.get(timeout=LIMIT_S).process is joined_worker
    assert joined_worker.tidy_up() == 128 + signal.SIGHUP


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system does not let a program choose the time")
def test_the_system_looks_whether_the_cable_of_a_guest_is_cut(joined_worker):
    connection = joined_worker._session.connection
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert 0 < connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= PATIENCE.silence


def test_signals_travel(visitor, joined_worker):
    joined_worker.send(signal.SIGTERM)
    assert visitor.hears() == {"signal": signal.SIGTERM}


def test_who_is_killed_has_ended_at_once(visitor, joined_worker, events):
    joined_worker.kill()
    assert visitor.hears() == {"signal": signal.SIGKILL}
    assert visitor.hears() is None
    assert isinstance(events.get(timeout=LIMIT_S), ProcessEnded)
    assert joined_worker.tidy_up() == -signal.SIGKILL


def test_who_is_refused_hears_why(visitor, events):
    visitor.asks()
    events.get(timeout=LIMIT_S).process.refuse("the training is done")
    assert visitor.hears() == {"no": "the training is done"}
    assert visitor.hears() is None


def test_a_closed_door_lets_nobody_in(events):
    join_listener = JoinListener(Address("127.0.0.1", 0), "secret", events)
    join_listener.close()
    with pytest.raises(ConnectionRefusedError):
        Visitor(join_listener)
    with pytest.raises(queue.Empty):
        events.get_nowait()
