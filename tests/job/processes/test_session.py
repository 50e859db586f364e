"""Calls on workers: results, output, errors, and how everything ends. The workers' processes are real, Ray is not."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from replicax.errors import ArgumentError, ClusterError, RemoteWorkerError
from replicax.job.elsewhere.session import Session
from replicax.job.elsewhere.worker_actors import PATIENCE as AGENT_PATIENCE
from replicax.job.processes.call import Call
from replicax.job.supervision.state import PATIENCE, Grace
from tests.job.processes.fakes import FakeWorkerCluster, RayOfHosts

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("hosts")]


class TooBadError(Exception):
    """An error of the user's, in the user's module."""

    def __init__(self, left: int, right: int):
        super().__init__(left, right)
        self.left, self.right = left, right


@pytest.fixture
def session(hosts: RayOfHosts) -> Iterator[Session]:
    with Session(FakeWorkerCluster(), grace=Grace(1.0, 1.0), environment={"SAID": "hello"}) as opened:
        yield opened


def role() -> dict[str, object]:
    return json.loads(os.environ["TF_CONFIG"])


def test_a_function_runs_on_every_worker_and_its_output_arrives(session: Session, capfd, caplog):
    def work(a: int, b: int) -> tuple[object, ...]:
        print("words")
        print("more words", file=sys.stderr)
        logging.getLogger("some.name").info("logged")
        return role(), os.getpid(), a + b, os.environ["SAID"], os.getppid()

    caplog.set_level(logging.INFO, "some.name")
    results = session.call(Call(work, (1,), {"b": 2}), everyone=True)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["[worker 0] words", "[worker 1] words"]
    for worker in ("[worker 0] ", "[worker 1] "):
        assert f"{worker}more words\n" in err
        assert any(line.startswith(worker) and "logged" in line for line in err.splitlines())
    roles, pids, sums, said, parents = zip(*results, strict=True)
    assert [each["task"] for each in roles] == [{"type": "worker", "index": 0}, {"type": "worker", "index": 1}]
    assert len({*roles[0]["cluster"]["worker"]}) == 2
    assert roles[0]["cluster"] == roles[1]["cluster"]
    assert (sums, said) == ((3, 3), ("hello", "hello"))
    assert len({*pids, os.getpid()}) == 3
    assert {*parents} == {os.getpid()}


def test_each_call_has_fresh_processes_and_ports_and_returns_what_the_chief_returns(hosts: RayOfHosts):
    def work() -> tuple[object, ...]:
        import __main__

        __main__.seen = getattr(__main__, "seen", 0) + 1
        return role()["cluster"], __main__.seen, role()["task"]["type"]

    with Session(FakeWorkerCluster(1, chief=True)) as session:
        (first,), (second,) = session.call(Call(work)), session.call(Call(work))
    assert first[0] != second[0]
    assert first[1:] == second[1:] == (1, "chief")


def fails(index: int, how: Callable[[], object]) -> Callable[[], object]:
    """Returns a function that fails on one worker and waits on the other."""

    def work() -> object:
        if role()["task"]["index"] == index:
            return how()
        time.sleep(100)
        return None

    return work


def test_an_error_keeps_its_type_and_its_traceback_there(session: Session):
    def raises() -> None:
        raise TooBadError(1, 2)

    begin = time.monotonic()
    with pytest.raises(TooBadError) as caught:
        session.call(Call(fails(1, raises)))
    assert (caught.value.left, caught.value.right) == (1, 2)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteWorkerError)
    assert cause.worker == "worker 1"
    assert "in raises\n" in cause.words
    assert "job/processes/call.py" not in cause.words
    assert time.monotonic() - begin < 60


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("how", "says"),
    [
        (lambda: sys.exit(3), "worker 1 failed: exit code 3"),
        (lambda: sys.exit(0), "worker 1 failed: its process ended with exit code 0 before the function returned"),
        (lambda: os._exit(0), "worker 1 failed: its process ended with exit code 0 before the function returned"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "worker 1 failed: exit code 137: ended by SIGKILL"),
    ],
)
def test_a_worker_that_ends_without_an_error_is_named(session: Session, how, says):
    with pytest.raises(RemoteWorkerError, match=says):
        session.call(Call(fails(1, how)))


def test_a_process_that_stays_after_its_function_is_named(hosts: RayOfHosts, capfd):

    def work() -> str:
        if role()["task"]["index"] == 1:
            threading.Thread(target=time.sleep, args=(4,), name="pump").start()
        return "done"

    with Session(FakeWorkerCluster(), patience=PATIENCE._replace(end=0.5)) as session:
        assert session.call(Call(work)) == ("done",)
    said = [line for line in capfd.readouterr().err.splitlines() if "Waiting for the process" in line]
    words = "worker 1: its function has returned, but it waits for its threads that are no daemons (pump)"
    assert sum(words in line for line in said) == 1


def test_a_result_that_cannot_be_sent_is_an_error_of_its_own(session: Session):
    with pytest.raises(ArgumentError, match=r"The result of the function \(generator\) cannot be sent"):
        session.call(Call(lambda: (x for x in range(3))))


def test_what_cannot_be_sent_is_said_before_anything_starts(session: Session, hosts: RayOfHosts):
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"cannot be sent to the workers: .*lock"):
        session.call(Call(lambda: lock))
    assert all(host._process is None for host in hosts.hosts)


def test_a_host_that_is_lost_ends_the_call_and_the_session(session: Session, hosts: RayOfHosts):
    timer = threading.Timer(3.0, lambda: hosts.kill(hosts.actors[1]))
    timer.start()
    with pytest.raises(RemoteWorkerError, match=r"worker:1 at 127.0.0.1:1001 is gone"):
        session.call(Call(time.sleep, (100,)))
    with pytest.raises(
        RemoteWorkerError, match=r"(?s)lost before this call.*make a new strategy.*worker:1 at .*is gone"
    ):
        session.call(Call(print))


def test_a_host_that_is_lost_between_two_calls_is_the_same_error(session: Session, hosts: RayOfHosts):
    session.call(Call(print))
    hosts.kill(hosts.actors[1])
    for said in ("worker 1 failed: its server .* was lost. Its last words", "was lost before this call"):
        with pytest.raises(RemoteWorkerError, match=rf"(?s){said}.*worker:1 at 127.0.0.1:1001 .*is gone"):
            session.call(Call(print))


def test_a_host_that_does_not_answer_is_lost_too(hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch):
    quick = AGENT_PATIENCE._replace(silence=1.0)
    with Session(FakeWorkerCluster(), grace=Grace(0.5, 0.5), agent_patience=quick) as session:
        news = hosts.hosts[1].news
        begin = time.monotonic()

        def stopped(wait_s: float) -> object:
            if time.monotonic() - begin > 2:
                time.sleep(5)
            return news(wait_s)

        monkeypatch.setattr(hosts.hosts[1], "news", stopped)
        with pytest.raises(RemoteWorkerError, match=r"worker:1 at 127.0.0.1:1001 has not answered for 2 s"):
            session.call(Call(time.sleep, (100,)))


@pytest.mark.daily(1)
@pytest.mark.parametrize("phase", ["reserve_port", "start", "tidy_up"])
def test_a_host_may_be_lost_in_any_phase(session: Session, hosts: RayOfHosts, monkeypatch: pytest.MonkeyPatch, phase):
    method = getattr(hosts.hosts[1], phase)

    def lost(*args: object) -> object:
        hosts.kill(hosts.actors[1])
        return method(*args)

    monkeypatch.setattr(hosts.hosts[1], phase, lost)
    begin = time.monotonic()
    with pytest.raises(RemoteWorkerError, match=r"worker:1 at 127.0.0.1:1001 .*is gone"):
        session.call(Call(print))
    assert time.monotonic() - begin < 30


def test_the_loss_of_the_head_is_noticed_although_ray_does_not_tell(hosts: RayOfHosts):
    cluster, quick = FakeWorkerCluster(), AGENT_PATIENCE._replace(again=0.5)
    with Session(cluster, grace=Grace(1.0, 1.0), agent_patience=quick) as session:
        cluster.lost = "worker:0 at 127.0.0.1:1000"
        with pytest.raises(RemoteWorkerError, match=r"cannot be reached: worker:0 at 127.0.0.1:1000, which holds"):
            session.call(Call(time.sleep, (100,)))


def test_ctrl_c_ends_the_workers(session: Session, hosts: RayOfHosts, capfd):
    pids = []

    def interrupt() -> None:
        while not all(host._process is not None for host in hosts.hosts):
            time.sleep(0.05)
        pids.extend(host._process.pid for host in hosts.hosts)
        time.sleep(2.0)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        session.call(Call(time.sleep, (100,)))
    assert "SIGINT is passed on to all tasks" in capfd.readouterr().err
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert session.call(Call(os.getpid)) != (os.getpid(),)  # The session goes on.


def test_one_call_at_a_time_and_none_after_the_end(session: Session):
    session._turn.acquire()
    with pytest.raises(ClusterError, match=r"is at work for another call"):
        session.call(Call(print))
    session._turn.release()
    session.close()
    with pytest.raises(ClusterError, match=r"The cluster was closed. Make a new strategy"):
        session.call(Call(print))
