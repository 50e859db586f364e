"""Questions over real sockets, and monitors of several workers in one process."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from replicax.cluster.strangers import Strangers
from replicax.group.health.client import TOKEN_HEADER, Client, in_parallel
from replicax.group.health.diagnosis import Diagnosis, Limits, ProblemKind
from replicax.group.health.monitor import Monitor
from replicax.group.health.peers import WATCHING, History, Peer
from replicax.group.health.server import HealthServer
from replicax.group.health.status import Status, status_from, status_of
from replicax.runtime.activity import now
from tests.group.health.workers import TOKEN, Worker, two_workers


def test_questions(workers: list[Worker]):
    client = workers[0].client
    assert status_from(client.status(1.0)).ended == ""
    assert "MainThread" in client.stacks(1.0)
    assert "test_questions" in client.stacks(1.0)
    assert client.program(0, 1.0) is None
    with pytest.raises(OSError, match="404"):
        client.post("/elsewhere", {}, 1.0)
    client.close()


@pytest.mark.parametrize("token", [None, "", "wrong", "sécret"])
def test_strangers_get_no_answer(workers: list[Worker], token: str | None):
    for method, path in [("GET", "/status"), ("GET", "/stacks"), ("POST", "/alarm")]:
        connection = http.client.HTTPConnection("127.0.0.1", workers[0].server.port, timeout=5)
        connection.request(method, path, headers={} if token is None else {TOKEN_HEADER: token.encode()})
        response = connection.getresponse()
        assert (response.status, response.read()) == (403, b"")
        connection.close()
    assert workers[0].codes == []


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"{}", b"\xff", b"[" * 100_000,
        b'{"text": "\\ud800", "summary": "", "code": 1, "culprits": []}',
        b'{"text": "", "summary": "", "code": true, "culprits": []}',
        b'{"text": "", "summary": "", "code": 1e3, "culprits": []}',
        b'{"text": "", "summary": "", "code": 1, "culprits": [[]]}',
        b'{"text": 1, "summary": "", "code": 1, "culprits": []}',
    ],
)  # fmt: skip
def test_nonsense_is_refused(workers: list[Worker], body: bytes):
    connection = http.client.HTTPConnection("127.0.0.1", workers[0].server.port, timeout=5)
    connection.request("POST", "/alarm", body, {TOKEN_HEADER: TOKEN})
    assert connection.getresponse().status == 400
    connection.close()


@pytest.mark.parametrize(
    ("error", "refusals"),
    [(http.client.RemoteDisconnected("hung up"), 0), (ConnectionResetError(), 0), (ConnectionRefusedError(), 1)],
)
def test_who_hangs_up_is_not_dead(error: OSError, refusals: int):
    class HangsUp:
        def status(self, timeout: float) -> Any:
            raise error

    peer = Peer(1, HangsUp(), History("worker:1", "", 0.0))  # type: ignore[arg-type]
    Monitor(0, "worker:0", "", [peer], Limits(1.0)).observer._ask(peer)
    assert peer.history.seen(1.0).refusals == refusals
    assert peer.history.seen(1.0).silent == 1.0


def test_strangers_who_hold_connections_keep_nobody_out():
    with two_workers(strangers=lambda: Strangers(60.0, 8)) as workers, contextlib.ExitStack() as stack:
        before = threading.active_count()  # Their number drops them, not the time.
        for half in (b"", b"GET /status HT", b"POST /alarm HTTP/1.1\r\nContent-Length: 9\r\n") * 20:
            place = ("127.0.0.1", workers[0].server.port)
            connection = stack.enter_context(socket.create_connection(place, timeout=10))
            connection.sendall(half)
        assert status_from(workers[0].client.status(5.0)).ended == ""
        deadline = time.monotonic() + 10
        while threading.active_count() > before + 12 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert threading.active_count() <= before + 12
        workers[0].client.close()


def test_strangers_are_dropped_in_time_and_friends_are_not():
    with two_workers(strangers=lambda: Strangers(0.2)) as workers:
        client = workers[0].client
        client.status(5.0)
        (connection,) = client._idle
        with socket.create_connection(("127.0.0.1", workers[0].server.port), timeout=10) as stranger:
            assert stranger.recv(1) == b""
        client.status(5.0)
        assert client._idle == [connection]
        client.close()


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + b"[" * 90_000]
)
def test_who_else_answers_at_a_port_is_an_error_that_the_monitor_expects(answer: bytes):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def serve():
            connection = other.accept()[0]
            connection.recv(4096)
            connection.sendall(answer)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((OSError, ValueError)):
            Client("127.0.0.1", other.getsockname()[1], TOKEN).status(5.0)
        thread.join(10)


def test_a_goodbye_arrives_whatever_the_error_quotes(workers: list[Worker]):
    workers[0].client.post("/goodbye", {"index": 1, "ended": "OSError: no file \udcff", "order": [0, 0]}, 5.0)
    workers[0].client.close()


def test_before_it_knows_the_token_the_server_is_silent():
    server = HealthServer("127.0.0.1")
    assert not server.knows("")
    assert not server.knows(None)
    server.server_close()
    with pytest.raises(ConnectionRefusedError):
        Client("127.0.0.1", server.port, "").status(1.0)


def test_a_client_connects_again(workers: list[Worker]):
    client = workers[0].client
    client.status(1.0)
    assert len(client._idle) == 1
    client._idle[0].sock.shutdown(socket.SHUT_RDWR)
    assert client.status(1.0)["phase"]
    client.close()


def test_one_that_does_not_come_back_is_left_behind():
    assert in_parallel([lambda: 1, lambda: time.sleep(1.0), lambda: 1 / 0], 0.05) == [1, None, None]


def test_a_goodbye_is_remembered_and_ends_the_wait_of_those_who_have_ended(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(now, "at", now.at)
    for worker in workers:
        worker.monitor.peers[0].history.answered(status_of(), time.monotonic())
    leaving = threading.Thread(target=workers[1].monitor.at_exit)
    leaving.start()
    while not workers[1].monitor._ended:
        time.sleep(0.01)
    assert status_from(workers[1].client.status(1.0)).ended == "done"
    leaving.join(0.5)
    assert leaving.is_alive()  # It waits for the other's script.
    left = workers[0].monitor.workers()[1].status
    assert left is not None
    assert (left.phase, left.seconds, left.ended) == ("leave", 0.0, "done")
    assert "ended (done)" in workers[0].monitor.report()
    workers[0].monitor.at_exit()
    leaving.join(10)
    assert not leaving.is_alive()
    assert (workers[0].codes, workers[1].codes) == ([], [])


def test_after_an_error_an_answer_of_each_is_enough(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(now, "at", now.at)
    with two_workers(WATCHING._replace(again=1000.0)) as workers:  # Nobody looks again for a long time.
        for worker in workers:
            worker.monitor.peers[0].history.answered(status_of(), time.monotonic())
        failed, other = workers[0].monitor, workers[1].monitor
        failed.on_error(RuntimeError("x"))
        leaving = threading.Thread(target=failed.at_exit)
        leaving.start()
        leaving.join(0.2)
        assert not failed._ended  # It waits for a look.
        failed._look()
        while not failed._ended:
            time.sleep(0.01)
        other.at_exit()
        leaving.join(10)
        assert not leaving.is_alive()
        assert (workers[0].codes, workers[1].codes) == ([], [])


@pytest.mark.nightly
def test_all_tell_the_same_story(workers: list[Worker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any):
    monkeypatch.setenv("REPLICAX_LOG_DIR", str(tmp_path))
    told = threading.Thread(target=workers[1].monitor._run)
    told.start()
    workers[0].monitor._alarm(Diagnosis(ProblemKind.ABSENT, (1,), "worker:1 (there:1) sleeps."))
    told.join(10)
    assert (workers[0].codes, workers[1].codes) == ([70], [70])
    report = (tmp_path / "stall-worker-0.txt").read_text()
    assert report == (tmp_path / "stall-worker-1.txt").read_text()
    said = capfd.readouterr().err
    assert said.count("is ended. worker:1 (there:1) sleeps.\n") == 2
    assert f"The Python stacks of all: {tmp_path / 'stall-worker-0.txt'}\n" in said
    assert len(said.splitlines()) < 80 < 2 * len(report.splitlines())
    assert "worker:1 (there:1) sleeps." in report
    assert "Python stacks of worker:0" in report
    assert "Python stacks of worker:1" in report
    assert "exit code 70" in report


def test_a_worker_whose_script_failed_ends_with_that(workers: list[Worker], capfd: Any):
    workers[0].monitor.on_error(RuntimeError("x"))
    workers[0].monitor._obey({"text": "story", "code": 71, "culprits": [0]})
    assert workers[0].codes == [1]


def test_a_goodbye_stays_whatever_arrives_late():
    history = History("worker:1", "", 0.0)
    history.ended("done", (3, 4))
    history.answered(Status("step"), 1.0)
    assert history.status.ended == "done"


def test_an_answer_ends_the_refusals():
    history = History("worker:1", "", 0.0)
    history.refused()
    history.refused()
    assert history.seen(5.0).refusals == 2
    history.answered(Status("step"), 6.0)
    assert history.seen(7.0).refusals == 0


def test_of_two_alarms_the_first_counts(workers: list[Worker], capfd: Any):
    workers[0].monitor.on_alarm({"text": "the cause", "code": 71, "culprits": [1]})
    workers[0].monitor.on_alarm({"text": "what follows", "code": 70, "culprits": [0]})
    workers[0].monitor._run()
    assert workers[0].codes == [71]


def test_own_absence_is_no_fault_of_the_others():
    time_now = [0.0]
    peer = Peer(1, Client("127.0.0.1", 1, TOKEN), History("worker:1", "", 0.0))
    monitor = Monitor(0, "worker:0", "", [peer], Limits(5.0), clock=lambda: time_now[0])
    peer.history.answered(Status("step"), 1.0)
    peer.history.unheard()
    time_now[0] = 60.0
    assert monitor.workers()[1].silent == 59.0
    monitor.observer.notice_own_pause()
    assert monitor.workers()[1].silent == 0.0
