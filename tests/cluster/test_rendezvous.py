"""Processes finding each other; threads stand for them here."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import socket
import threading
import time

import pytest

from replicax.cluster import rendezvous
from replicax.errors import ClusterError, ClusterTimeoutError


def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def names(count):
    return [f"worker:{i} at host{i}:1" for i in range(count)]


def meet(address, process, count=3, timeout_s=20.0, token="", **info):
    return rendezvous.meet(address, process, names(count), info, timeout_s, token)


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
def meeting(address, *processes, count=3, timeout_s=20.0, **info):
    """Lets processes meet in threads; gives the result, or the error, of each that is through by the block's end."""
    found = {}

    def run(process):
        try:
            found[process] = meet(address, process, count, timeout_s, number=process, **info)
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


def test_while_it_waits_it_says_for_whom(monkeypatch, caplog):
    for name in ("_FIRST_REPORT_AFTER", "_SECONDS_BETWEEN_REPORTS"):
        monkeypatch.setattr(rendezvous, name, 0.1)
    address = free_address()
    with caplog.at_level(logging.WARNING), meeting(address, 0, 1):
        assert soon(lambda: "2 of 3 processes here after 0 s; missing worker:2 at host2:1" in caplog.text)
        assert soon(lambda: "worker:1 at host1:1 has waited 0 s for others; process 0 is here" in caplog.text)
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
        assert "another process is number 1 already" in str(error)
        meet(address, 2, number=2)
    assert isinstance(found[0], list)


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        ({"count": 4}, "it was told of 4 processes, process 0 of 3"),
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


def test_a_port_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"cannot be listened at.*{address}.*Choose a free port"):
            meet(address, 0, timeout_s=1.0)
