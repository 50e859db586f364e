"""Questions over real sockets, and monitors of several workers in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.health.monitor as monitor_module
import replicax.health.server as server_module
from replicax.errors import ArgumentError, ProgramMismatchError
from replicax.health.calls import Calls, together
from replicax.health.client import TOKEN_HEADER, Client, in_parallel
from replicax.health.diagnosis import Diagnosis, Limits, ProblemKind
from replicax.health.monitor import Monitor
from replicax.health.order import CallDescription
from replicax.health.peers import History, Peer
from replicax.health.phases import now
from replicax.health.programs import AnnouncedProgram, ProgramComparison, fingerprint
from replicax.health.server import HealthServer
from replicax.health.status import Status, status_from, status_of
from replicax.health.watching import stall_timeout_from

TOKEN = "secret"


class Worker:
    """A worker's server and monitor, whose thread does not run."""

    def __init__(self, index: int):
        self.codes: list[int] = []
        self.server = HealthServer("127.0.0.1")
        self.index = index

    def meet(self, others: list[Worker]) -> None:
        peers = [
            Peer(o.index, Client("127.0.0.1", o.server.port, TOKEN), History(f"worker:{o.index}", "", 0.0))
            for o in others
        ]
        self.monitor = Monitor(self.index, f"worker:{self.index}", "here:1", peers, Limits(5.0), end=self.codes.append)
        self.server.answer(TOKEN, self.monitor)

    @property
    def client(self) -> Client:
        return Client("127.0.0.1", self.server.port, TOKEN)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.monitor.observer._asking.close()
        for peer in self.monitor.peers:
            peer.client.close()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made = [Worker(0), Worker(1)]
    for worker in made:
        worker.meet([other for other in made if other is not worker])
    yield made
    for worker in made:
        worker.stop()


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


def test_strangers_who_hold_connections_keep_nobody_out(workers: list[Worker], monkeypatch):
    monkeypatch.setattr(server_module, "_MOST_STRANGERS", 8)
    before = threading.active_count()
    with contextlib.ExitStack() as stack:
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


def test_strangers_are_dropped_in_time_and_friends_are_not(workers: list[Worker], monkeypatch):
    monkeypatch.setattr(server_module, "_SECONDS_TO_SHOW_THE_TOKEN", 0.2)
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


def alarm_of(workers: list[Worker]) -> str:
    """Lets the first worker look, which ends both; returns the finding."""
    workers[0].monitor._look()
    assert workers[0].codes == [72]
    told = workers[1].monitor._told
    assert told is not None
    workers[1].monitor._obey(told)
    assert workers[1].codes == [72]
    return str(told["summary"]).splitlines()[0]


def run_programs(worker: Worker, *names: str) -> None:
    for name in names:
        worker.monitor.order.note(CallDescription.of(name))


def test_workers_that_run_known_programs_in_another_order_end(workers: list[Worker], capfd: Any):
    run_programs(workers[0], "A", "B", "A", "B", "A")
    run_programs(workers[1], "A", "B")
    workers[0].monitor._look()
    workers[1].monitor._look()  # One is ahead.
    assert (workers[0].codes, workers[1].codes) == ([], [])
    run_programs(workers[1], "B", "A")
    workers[0].monitor.on_error(RuntimeError("what came of it"))
    found = alarm_of(workers)
    assert found.startswith("replicax: the job would compute wrong numbers and is ended. worker:0 (here:1), worker:1")
    assert "have run different programs: as call number 3, worker:0 'A' and worker:1 'B'; all" in found


def test_a_difference_is_an_alarm_even_if_the_other_does_not_say_more(workers: list[Worker], capfd: Any):
    for worker, name in zip(workers, "AB", strict=True):
        run_programs(worker, name)
    workers[0].monitor.peers[0].history.answered(workers[1].monitor._own_status(), time.monotonic())
    workers[1].server.shutdown()
    workers[1].server.server_close()
    workers[0].monitor._look()
    assert workers[0].codes == [72]
    assert "have not run the same programs in the same order" in capfd.readouterr().err


@pytest.mark.parametrize("more", [0, 1])
def test_nobody_leaves_in_peace_after_a_call_more_or_less(
    workers: list[Worker], more: int, monkeypatch: pytest.MonkeyPatch, capfd: Any
):
    monkeypatch.setattr(now, "at", now.at)
    for worker in workers:
        run_programs(worker, "A")
        worker.monitor.peers[0].history.answered(status_of(), time.monotonic())
    run_programs(workers[1], *"B" * more)
    threads = [threading.Thread(target=worker.monitor.at_exit) for worker in workers]
    if more:  # What the thread of a monitor does, which would end the process.
        monkeypatch.setattr(Monitor, "_wait_for_looks", lambda monitor, count: monitor._look())
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [set(worker.codes) for worker in workers] == [{72} if more else set()] * 2
    if more:
        assert "as call number 2, worker:0 nothing more and worker:1 'B'" in capfd.readouterr().err


def test_each_call_of_a_program_is_noted(monkeypatch: pytest.MonkeyPatch):
    alone = Monitor(0, "worker:0", "", [], Limits(5.0))
    monkeypatch.setattr(monitor_module, "_running", alone)
    programs = Calls("train", shared=True), Calls("test", shared=True)
    for i in (0, 1, 1, 0):
        with programs[i].one() as call:
            assert call is not None
            call.prepare(None)
    with together("reduction", "float32(2,)"):
        pass
    with Calls("own", shared=False).one():
        pass
    noted = [alone.order.get(i) for i in range(1, 7)]
    train, test = "'train' (program 1)", "'test' (program 2)"
    assert [n and n.program for n in noted] == [train, test, test, train, "'reduction' (float32(2,))", None]


def test_the_same_programs_run(workers: list[Worker]):
    for worker in workers:
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
        worker.monitor.programs.announce(AnnouncedProgram("train", "abc"))
    for worker in workers:
        worker.monitor.programs.compare(0, worker.monitor.peers, wait=True)


@pytest.mark.parametrize(
    "theirs", [AnnouncedProgram("train", "other"), AnnouncedProgram("test", "abc"), AnnouncedProgram("test", "")]
)
def test_different_programs_are_told_apart(workers: list[Worker], theirs: AnnouncedProgram):
    for worker, program in zip(workers, [AnnouncedProgram("train", "abc"), theirs], strict=True):
        worker.monitor.peers[0].history.answered(status_of(), 0.0)
        worker.monitor.programs.announce(program)
    with pytest.raises(ProgramMismatchError, match="worker:0 is about to run 'train'") as raised:
        workers[0].monitor.programs.compare(0, workers[0].monitor.peers, wait=True)
    assert (raised.value.other_worker, raised.value.other_function) == ("worker:1", theirs.name)
    with pytest.raises(ProgramMismatchError):
        workers[1].monitor.programs.compare(0, workers[1].monitor.peers, wait=True)


def test_who_has_no_part_in_a_program_does_not_know_its_fingerprint():
    assert not AnnouncedProgram("train", "abc").differs(AnnouncedProgram("train", ""))
    assert ProgramComparison("worker:0").get(0) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "complex64"])
def test_arrays_that_a_program_closes_over_count(dtype: str):
    def found(seed: int) -> str:
        closed_over = jnp.asarray((np.random.default_rng(seed).normal(size=(9, 9)) * 3).round()).astype(dtype)

        def step(x):
            return jax.lax.scan(lambda carry, _: ((carry * closed_over).astype(dtype), None), x, None, length=2)[0]

        return fingerprint(jax.jit(step).lower(jnp.ones((9, 9), dtype)))

    assert found(1) == found(1)
    assert found(1) != found(2)


def test_fingerprints():
    def lowered(factor: float, text: str = "x") -> Any:
        def f(x: jax.Array) -> jax.Array:
            jax.debug.print(text + " {}", x)
            return x * factor

        return jax.jit(f).lower(jnp.ones(3))

    assert fingerprint(lowered(2.0)) == fingerprint(lowered(2.0, "y"))  # Callbacks have other numbers.
    assert fingerprint(lowered(2.0)) != fingerprint(lowered(3.0))


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [(300.0, "", 300.0), (300.0, "7", 7.0), (5, "7", 5.0), (None, "7", None), (0, "7", None), (300.0, "0", None)],
)
def test_the_environment_sets_the_default(given: Any, environment: str, expected: float | None):
    assert stall_timeout_from(given, {"REPLICAX_STALL_TIMEOUT": environment}) == expected


@pytest.mark.parametrize("given", [-1, "soon", float("nan"), float("inf"), True])
def test_a_stall_timeout_is_a_number(given: Any):
    with pytest.raises(ArgumentError, match="stall_timeout"):
        stall_timeout_from(given, {})
    with pytest.raises(ArgumentError, match="REPLICAX_STALL_TIMEOUT"):
        stall_timeout_from(300.0, {"REPLICAX_STALL_TIMEOUT": str(given)})


def test_without_a_cluster_the_report_is_of_this_process():
    assert rx.health.report().startswith("  worker:0   phase ")
    assert dataclasses.replace(status_of(), seconds=0.0).phase == "idle"
