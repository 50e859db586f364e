"""The host of a worker, without Ray: it watches its client, and holds back what nobody takes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from replicax.job.elsewhere.agent import Outbox, WorkerAgent
from replicax.job.elsewhere.messages import Client, Drains, Ended, Failed, News, Order, Output
from replicax.job.processes.call import Call, payload_of, result_of
from replicax.job.processes.events import CallReturned, ClusterLeft, FoundSilent, MemberNews
from replicax.job.processes.task import PlannedTask
from tests.ray_cluster.conftest import wait_for

pytestmark = pytest.mark.multiprocess
ORDER = Order(PlannedTask("worker", 0, None, {}), arguments=("result",))


@pytest.fixture
def host() -> Iterator[WorkerAgent]:
    made = WorkerAgent(Client.here(), 60.0)
    yield made
    made.close()


def to_the_end(host: WorkerAgent) -> list[News]:
    found: list[News] = []
    while not any(isinstance(news, Ended) for news in found):
        found += host.news(5.0).news
    return found


def printed(news: list[News]) -> bytes:
    return b"".join(each.chunk for each in news if isinstance(each, Output))


def test_a_call_from_the_start_to_its_result(host: WorkerAgent, monkeypatch: pytest.MonkeyPatch):
    def work() -> str:
        print("words", flush=True)
        return os.environ.get("RAY_AUTH_TOKEN", "no token") + os.environ.get("SLURM_PROCID", ", no rank")

    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    monkeypatch.setenv("SLURM_PROCID", "3")  # That of the server.
    host.start(ORDER, payload_of(Call(work)))
    news = to_the_end(host)
    remains = host.tidy_up()
    news += host.news(0.0).news  # As the client does: output may come behind the end.
    assert printed(news) == b"words\n"
    assert (remains.returncode, result_of(remains.result)) == (0, ("no token, no rank",))


def test_what_a_process_says_of_the_others_passes_through(host: WorkerAgent):
    def work() -> None:
        from replicax.group.launcher_messages import tell_launcher

        for told in (
            {"world": 2, "lives": [[0, 1], [2, 0]]}, {"leaving": "preempted"}, {"silent": "worker 2", "life": 1},
            {"leaves": True},
        ):  # fmt: skip
            assert tell_launcher(told)

    host.start(ORDER, payload_of(Call(work)))
    news = to_the_end(host)
    assert host.tidy_up().returncode == 0
    news += host.news(0.0).news
    assert [each for each in news if not isinstance(each, (Output, Ended, CallReturned))] == [
        MemberNews(None, 2, ((0, 1), (2, 0))), MemberNews(None, leaving="preempted"), FoundSilent("worker 2", 1),
        ClusterLeft(None),
    ]  # fmt: skip


def test_a_machine_that_is_to_go_tells_its_process_once_and_the_client(
    host: WorkerAgent, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("replicax.job.elsewhere.agent.is_draining", lambda: True)
    host.start(ORDER, payload_of(Call(time.sleep, (100,))))
    news = to_the_end(host)
    assert news.count(Drains()) == 1
    assert host.tidy_up().returncode == -signal.SIGTERM


def test_an_error_is_told(host: WorkerAgent):
    host.start(ORDER, payload_of(Call(int, ("x",))))
    news = to_the_end(host)
    code = host.tidy_up().returncode
    news += host.news(0.0).news  # On a busy machine the end is noticed before the message.
    (failed,) = [each for each in news if isinstance(each, Failed)]
    assert failed.code == 1
    assert failed.words.endswith("ValueError: invalid literal for int() with base 10: 'x'")
    assert code == 1


def test_a_silent_client_loses_its_worker():
    host = WorkerAgent(Client.here(), lease_s=1.0)
    try:
        pid = host.start(ORDER, payload_of(Call(time.sleep, (100,))))
        begin = time.monotonic()
        while time.monotonic() - begin < 2.5:
            host.news(0.2)  # It is not silent.
        os.kill(pid, 0)
        wait_for(lambda: host._process._popen.poll() is not None or _is_zombie(pid), 10)
    finally:
        host.close()


def _is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_the_next_process_ends_the_one_before_and_signals_arrive(host: WorkerAgent):
    first = host.start(ORDER, payload_of(Call(time.sleep, (100,))))
    second = host.start(ORDER, payload_of(Call(time.sleep, (100,))))
    assert first != second
    assert not os.path.exists(f"/proc/{first}")
    host.send(signal.SIGTERM)
    to_the_end(host)
    assert host.tidy_up().returncode != 0


def test_a_port_is_kept_until_the_process_has_ended(host: WorkerAgent):
    import socket

    port = host.reserve_port("127.0.0.1")
    host.start(ORDER, payload_of(Call(time.sleep, (0.5,))))
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    to_the_end(host)
    host.tidy_up()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_output_waits_until_it_is_taken(monkeypatch: pytest.MonkeyPatch):
    import threading

    monkeypatch.setattr("replicax.job.elsewhere.agent._MOST_BYTES", 10)
    outbox = Outbox()
    outbox.put_output(b"x" * 20, False)
    writer = threading.Thread(target=outbox.put_output, args=(b"more", True))
    writer.start()
    time.sleep(0.2)
    assert writer.is_alive()
    assert outbox.take(0) == (Output(b"x" * 20, False),)
    writer.join(5)
    assert outbox.take(5) == (Output(b"more", True),)
    begin = time.monotonic()
    assert outbox.take(0.2) == ()
    assert time.monotonic() - begin >= 0.2
