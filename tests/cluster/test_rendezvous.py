"""Processes finding each other; threads stand for them here."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import pickle
import socket
import threading
import time

import pytest

from replicax.cluster import rendezvous, strangers
from replicax.cluster.patience import CONNECTING
from replicax.cluster.signing import shown
from replicax.errors import ClusterError, ClusterTimeoutError

QUICK = CONNECTING._replace(silence=0.5, end=0.5, again=0.1)


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def names(count):
    return [f"worker:{i} at host{i}:1" for i in range(count)]


def meet(address, process, count=3, timeout_s=20.0, token="", patience=CONNECTING, **info):
    return rendezvous.meet(address, process, names(count), info, timeout_s, token, patience=patience)


def soon(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    return condition()


def connected(address):
    """A connection to who listens there, or soon will."""
    host, port = address.split(":")
    for _ in range(1000):
        with contextlib.suppress(ConnectionRefusedError):
            return socket.create_connection((host, int(port)), timeout=20)
        time.sleep(0.01)
    raise AssertionError(f"nobody listens at {address}")


@contextlib.contextmanager
def meeting(address, *processes, count=3, timeout_s=20.0, token="", patience=CONNECTING, **info):
    """Lets processes meet in threads; gives the result, or the error, of each that is through by the block's end."""
    found = {}

    def run(process):
        try:
            found[process] = meet(address, process, count, timeout_s, token, patience, number=process, **info)
        except Exception as error:
            found[process] = error

    threads = [threading.Thread(target=run, args=(process,)) for process in processes]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join(timeout_s + 10)


@pytest.mark.parametrize("first", [(0,), (2, 1)], ids=["process 0 first", "process 0 last"])
def test_processes_go_on_when_all_are_there_and_know_each_other(first):
    address = free_address()
    with meeting(address, *first) as early:
        time.sleep(0.2)
        assert early == {}
        with meeting(address, *({0, 1, 2} - set(first))) as late:
            pass
    infos = [{"number": i} for i in range(3)]
    assert early | late == {0: infos, 1: infos, 2: infos}


def test_the_missing_are_named():
    address = free_address()
    with meeting(address, 0, 1, count=4, timeout_s=2.0) as found:
        pass
    assert found[0].missing == ("worker:2 at host2:1", "worker:3 at host3:1")
    assert "worker:0 at host0:1 waited 2 s" in str(found[0])
    assert isinstance(found[1], ClusterTimeoutError)
    again = pickle.loads(pickle.dumps(found[0]))
    assert (str(again), vars(again)) == (str(found[0]), vars(found[0]))


def test_while_it_waits_it_says_for_whom(caplog):
    address = free_address()
    with caplog.at_level(logging.WARNING), meeting(address, 0, 1, patience=CONNECTING._replace(again=0.02)):
        assert soon(lambda: "2 of 3 processes here after 0 s; missing worker:2 at host2:1" in caplog.text)
        assert soon(lambda: caplog.text.count("2 of 3 processes here after") > 4)  # Both say so.
        meet(address, 2, number=2)


def test_process_0_may_be_missing():
    with pytest.raises(ClusterTimeoutError, match=r"for worker:0 at host0:1 \(.*refused") as error:
        meet(free_address(), 1, timeout_s=0.3)
    assert error.value.missing == ("worker:0 at host0:1",)


def test_two_processes_with_one_number_are_told():
    address = free_address()
    with meeting(address, 0, 1) as found, meeting(address, 1) as twin:
        assert soon(lambda: 1 in found or 1 in twin)
        error = found.get(1) or twin.get(1)
        assert isinstance(error, ClusterError)
        assert "another process has the index 1 already" in str(error)
        meet(address, 2, number=2)
    assert isinstance(found[0], list)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"count": 4}, "it expects 4 processes, process 0 expects 3"),
        ({"token": "guess"}, "does not know the job's token"),
        ({"same version of JAX": "0.9"}, "its version of JAX is '0.9', and that of process 0 '0.10'"),
    ],
    ids=["count", "token", "version"],
)
def test_who_does_not_fit_is_told(theirs, says):
    address = free_address()
    theirs = {"same version of JAX": "0.10", **theirs}
    first = meeting(address, 0, timeout_s=1.0, **{"same version of JAX": "0.10"})
    with first as found, pytest.raises(ClusterError, match=says):
        meet(address, 1, timeout_s=5.0, **theirs)
    assert names(3)[1] in found[0].missing


def test_strangers_and_the_dead_do_not_count():
    address = free_address()
    hello = json.dumps({"process": 1, "processes": 3, "token": "", "info": {}}).encode()
    with meeting(address, 0) as found:
        for line in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b"\xff\n", hello + b"\n"):
            with connected(address) as stranger:
                stranger.sendall(line)
        with meeting(address, 1, 2) as others:
            pass
    assert all(isinstance(result, list) for result in (found | others).values())


def greeting(**changes):
    return {"process": 1, "processes": 3, "token": shown("secret", "process"), "info": {}, **changes}


HOSTILE = {
    "half of a surrogate pair": b'"\\ud800"\n',
    "the same as a token": b'{"process": 1, "processes": 3, "token": "\\ud800", "info": {}}\n',
    "a deep nest": b"[" * 200_000,
    "a deep nest, closed": b"[" * 20_000 + b"]" * 20_000 + b"\n",
    "a deep nest as info": b'{"process":1,"processes":3,"token":"secret","info":'
    + b'{"":' * 40
    + b"1"
    + b"}" * 41
    + b"\n",
    "an endless number": b"1" * 60_000 + b"\n",
    "infinity": b'{"process": 1e999}\n',
    "no UTF-8": b"\xff\xfe\x00{\n",
    "zeros": b"\0" * 10_000 + b"\n",
    "a web browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "TLS": bytes.fromhex("16030100f5010000f10303") + bytes(200),
}
FORGED = {
    "info is a list": ({"info": [1]}, "not a JSON object"),
    "true for a number": ({"process": True}, "there is no process True"),
    "a float for a number": ({"process": 1.0}, "there is no process 1.0"),
    "process 0": ({"process": 0}, "there is no process 0"),
    "a number too large": ({"process": 10**400}, "there is no process"),
    "processes is true": ({"processes": True}, "it expects True processes"),
    "a list for a token": ({"token": ["secret"]}, None),
    "a key more": ({"more": 1}, None),
    "another token": ({"token": "Secret"}, "does not know the job's token"),
}


def heard(connection):
    """All that comes until the other side hangs up."""
    connection.settimeout(20)
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_message_of_a_stranger_ends_process_0(message):
    address = free_address()
    with meeting(address, 0, count=2, token="secret") as found, connected(address) as stranger:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(message)
        with meeting(address, 1, count=2, token="secret") as others:
            pass
    assert [len(result) for result in (found | others).values()] == [2, 2]


def test_a_forged_greeting_takes_no_place():
    address = free_address()
    with meeting(address, 0, token="secret") as found:
        for changes, answer in FORGED.values():
            with connected(address) as forger:
                forger.sendall(json.dumps(greeting(**changes)).encode() + b"\n")
                said = heard(forger)
            assert answer in said if answer else said == "", changes
        with meeting(address, 1, 2, token="secret") as others:
            pass
    assert all(isinstance(result, list) for result in (found | others).values()), found


def proof_of_other_news():
    """What process 0 of the job has shown another time."""
    address = free_address()
    with meeting(address, 0, count=2, token="secret"), connected(address) as guest:
        guest.sendall(json.dumps(greeting(processes=2)).encode() + b"\n")
        with guest.makefile("rb") as lines:
            while "go" not in (message := json.loads(lines.readline())):
                guest.sendall(json.dumps({"here": message["ask"]}).encode() + b"\n")
    return message["proof"]


def test_who_listens_in_the_place_of_process_0_learns_no_token_and_is_not_believed():
    heard_before = proof_of_other_news()
    infos, proofs = (
        [{"number": 0, "session": "a stranger's"}, {}],
        itertools.cycle(["", "known", "signed", "of other news"]),
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        meeting(f"127.0.0.1:{server.getsockname()[1]}", 1, count=2, timeout_s=2.0, token="secret") as found,
    ):
        server.settimeout(1.0)
        with contextlib.suppress(TimeoutError):  # It comes no more.
            while True:
                connection, _ = server.accept()
                said = connection.recv(4096)
                assert b"secret" not in said
                known = json.loads(said)["token"]
                forged = {"": "", "known": known, "signed": shown(known, f"process 0 {json.dumps(infos)}")}
                forged["of other news"] = heard_before
                answer = {"go": infos, "proof": forged[next(proofs)]}
                with connection, contextlib.suppress(OSError):
                    connection.sendall(json.dumps(answer).encode() + b"\n")
                    connection.recv(1)
    assert isinstance(found[1], ClusterTimeoutError)
    assert "it does not know the job's token (REPLICAX_TOKEN)" in str(found[1])


def test_those_who_say_nothing_delay_nobody():
    address = free_address()
    begun = time.monotonic()
    with meeting(address, 0) as found, contextlib.ExitStack() as silent:
        for half in (b"", b"{", b'{"process": 1') * 100:
            silent.enter_context(connected(address)).sendall(half)
        with meeting(address, 1, 2) as others:
            pass
        assert len(others) == 2
        assert time.monotonic() - begun < strangers.SECONDS_TO_PROVE
    assert len(found[0]) == 3


def test_a_process_that_stops_after_its_greeting_is_named():
    address = free_address()
    with meeting(address, 0, 2, timeout_s=3.0, patience=QUICK) as found, connected(address) as stopped:
        stopped.sendall(json.dumps(greeting(token="")).encode() + b"\n")
        heard_of = soon(lambda: len(found) == 2)
    assert heard_of
    for error in found.values():
        assert isinstance(error, ClusterTimeoutError)
        assert error.missing == ("worker:1 at host1:1",)
        assert "came, but does not answer any more (stopped?): worker:1 at host1:1" in str(error)


def test_one_that_goes_on_in_time_is_waited_for():
    address = free_address()
    with meeting(address, 0, count=2, patience=CONNECTING._replace(again=0.1)) as found, connected(address) as slow:
        slow.sendall(json.dumps(greeting(processes=2, token="")).encode() + b"\n")
        slow.settimeout(20)
        file = slow.makefile()
        last = [json.loads(file.readline())["ask"] for _ in range(3)][-1]
        time.sleep(0.3)
        assert found == {}
        slow.sendall(json.dumps({"here": last}).encode() + b"\n")
        said = [json.loads(line) for line in file]
    assert said[-2:] == [{"go": [{"number": 0}, {}], "proof": ""}, {"through": True}]
    assert len(found[0]) == 2


@pytest.mark.parametrize(
    "words", [(), (b'{"ask": 1, "missing": [2], "silent": [], "absent": 1}\n',)], ids=["never", "no more"]
)
def test_process_0_that_is_stopped_is_named(words):
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        with meeting(address, 1, timeout_s=1.5, patience=QUICK) as found:
            connection = stopped.accept()[0]
            for word in words:
                connection.sendall(word)
        connection.close()
    assert found[1].missing == ("worker:0 at host0:1",)
    assert "its port is open, but it" in str(found[1])
    assert ("was here, and has been silent since" if words else "has not answered yet") in str(found[1])


@pytest.mark.parametrize(
    "answer",
    [b'{"go": 1}', b'{"go": [1, 2, 3]}', b'{"go": [{}]}', b'{"no": 1}', b"[]", b'"\\ud800"', b"\xff", b"SSH-2.0-x",
     b"{}", b'{"over": [0]}', b'{"ask": true, "missing": [], "silent": [], "absent": 0}',
     b'{"ask": 1}',
     b'{"ask": 1, "missing": [], "silent": []}',
     b'{"ask": 1, "missing": [9], "silent": [], "absent": 1}'],
)  # fmt: skip
def test_who_else_listens_at_the_address_is_not_taken_for_process_0(answer):
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        address = f"127.0.0.1:{stranger.getsockname()[1]}"
        with meeting(address, 1, timeout_s=0.2) as found:
            connection = stranger.accept()[0]
            connection.sendall(answer + b"\n")
        connection.close()
    assert isinstance(found[1], ClusterTimeoutError)
    assert found[1].missing == ("worker:0 at host0:1",)


def test_a_token_that_is_no_text_is_told():
    with pytest.raises(ClusterError, match="REPLICAX_TOKEN has bytes that are not UTF-8"):
        meet(free_address(), 0, token="\udcff")


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"cannot be listened at.*{address}.*Choose a free port"):
            meet(address, 0, timeout_s=1.0)


@contextlib.contextmanager
def working(address, works, timeout_s=20.0, patience=CONNECTING):
    """As `meeting`; each process has work to do once all have come."""
    found = {}

    def run(process, work):
        try:
            found[process] = rendezvous.meet(
                address, process, names(3), {}, timeout_s, work=lambda infos: work(), patience=patience
            )
        except Exception as error:
            found[process] = error

    threads = [threading.Thread(target=run, args=each) for each in works.items()]
    for thread in threads:
        thread.start()
    yield found
    for thread in threads:
        thread.join(timeout_s + 10)


def test_all_work_at_the_same_time_once_all_have_come():
    together = threading.Barrier(3, timeout=20)
    with working(free_address(), dict.fromkeys(range(3), together.wait)) as found:
        pass
    assert found == {i: [{}] * 3 for i in range(3)}


def test_who_is_done_early_does_not_end_the_work_of_others():
    done = threading.Event()
    with working(free_address(), {0: lambda: None, 1: lambda: done.wait(20), 2: lambda: None}) as found:
        assert soon(lambda: len(found) == 2)
        time.sleep(0.2)
        assert 1 not in found
        done.set()
    assert all(isinstance(result, list) for result in found.values()), found


def test_an_error_of_the_work_is_raised():
    def fail():
        raise ConnectionRefusedError("of the work")  # It is no error of the connection with process 0.

    with working(free_address(), {0: lambda: None, 1: fail, 2: lambda: None}) as found:
        pass
    assert isinstance(found[1], ConnectionRefusedError)
    assert [len(found[i]) for i in (0, 2)] == [3, 3]


@pytest.mark.parametrize("goes", [False, True], ids=["is stopped", "hangs up"])
def test_who_is_lost_while_all_work_is_named(goes):
    address, never = free_address(), threading.Event()
    hang = lambda: never.wait(60)  # noqa: E731
    begun = time.monotonic()
    with working(address, {0: hang, 2: hang}, timeout_s=2.0, patience=QUICK) as found, connected(address) as lost:
        lost.sendall(json.dumps(greeting(token="")).encode() + b"\n")
        for line in lost.makefile():
            message = json.loads(line)
            if "go" in message:
                break
            lost.sendall(json.dumps({"here": message["ask"]}).encode() + b"\n")
        if goes:
            lost.shutdown(socket.SHUT_RDWR)
        assert soon(lambda: len(found) == 2)
    never.set()
    assert time.monotonic() - begun >= 2.0
    for error in found.values():
        assert isinstance(error, ClusterTimeoutError)
        assert error.missing == ("worker:1 at host1:1",)
        assert ("hung up: worker:1" if goes else "does not answer any more (stopped?): worker:1") in str(error)
        assert "all had come, and JAX was connecting them" in str(error)


def test_process_0_that_is_stopped_while_all_work_is_named():
    never = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        address = f"127.0.0.1:{stopped.getsockname()[1]}"
        with working(address, {1: lambda: never.wait(60)}, timeout_s=1.0, patience=QUICK) as found:
            connection = stopped.accept()[0]
            connection.sendall(json.dumps({"go": [{}] * 3, "proof": ""}).encode() + b"\n")
        connection.close()
    never.set()
    assert found[1].missing == ("worker:0 at host0:1",)
    assert "was here, and has been silent since" in str(found[1])


def test_while_all_are_there_the_work_may_take_longer():
    works = dict.fromkeys(range(3), lambda: time.sleep(2.0))
    with working(free_address(), works, timeout_s=1.0, patience=QUICK._replace(start=20.0)) as found:
        assert soon(lambda: len(found) == 3)
    assert all(isinstance(result, list) for result in found.values()), found
