"""Looks at workers that are slow to answer, or never do."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import replicax.group.health.monitor as monitor_module
from replicax.cluster.patience import Patience
from replicax.group.health.diagnosis import Limits
from replicax.group.health.monitor import Monitor
from replicax.group.health.observer import QuestionThreads
from replicax.group.health.peers import History, Peer
from replicax.group.health.status import Status, status_of
from tests.group.health.workers import ALARMED, LEAVING


def soon(condition: Callable[[], Any], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


class Held:
    """Questions that stay open until they are let go."""

    def __init__(self) -> None:
        self.gates = {i: threading.Event() for i in range(8)}
        self.asked: Counter[int] = Counter()

    def ask(self, worker: int) -> None:
        self.asked[worker] += 1
        assert self.gates[worker].wait(30)

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.set()


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All that has been asked is over by the end of a test."""
    made: list[QuestionThreads] = []
    init = QuestionThreads.__init__

    def noted(self: QuestionThreads, *arguments: Any) -> None:
        init(self, *arguments)
        made.append(self)

    monkeypatch.setattr(QuestionThreads, "__init__", noted)
    yield
    for asking in made:
        asking.close()


@pytest.fixture
def held(closed: None) -> Iterator[Held]:
    made = Held()
    yield made
    made.let_go()


def test_who_has_not_answered_yet_is_not_asked_again(held: Held):
    asking = QuestionThreads(held.ask, 8)
    held.gates[1].set()
    for times in range(1, 4):
        asking.begin([0, 1])
        assert soon(lambda times=times: held.asked == {0: 1, 1: times} and list(asking._open) == [0])
    held.gates[0].set()
    asking.wait(20)
    asking.begin([0])
    asking.wait(20)
    assert held.asked[0] == 2


def test_threads_are_few_and_kept(held: Held):
    asking = QuestionThreads(held.ask, 3)
    asking.begin(range(8))
    assert soon(lambda: len(held.asked) == 3)
    asking.begin(range(8))
    time.sleep(0.05)
    assert (len(held.asked), asking._threads) == (3, 3)
    assert sorted(asking.late(0.0)) == [0, 1, 2]  # The others have not been asked, and are not late.
    held.let_go()
    asking.wait(20)
    assert held.asked == dict.fromkeys(range(8), 1)
    asking.begin(range(8))
    asking.wait(20)
    assert (held.asked.total(), asking._threads) == (16, 3)


def test_a_mistake_in_a_question_does_not_end_the_asking(caplog: pytest.LogCaptureFixture):
    asked = []

    def ask(worker: int) -> None:
        asked.append(worker)
        raise KeyError("mistake")

    asking = QuestionThreads(ask, 1)
    for _ in range(2):
        asking.begin([7])
        asking.wait(20)
    assert asked == [7, 7]
    assert "failed to ask worker 7" in caplog.text


class Slow:
    """A worker behind a slow network, or, with infinite seconds, one that is cut off."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def status(self, timeout: float) -> Any:
        time.sleep(min(self.seconds, timeout))
        if self.seconds > timeout:
            raise TimeoutError
        return dataclasses.asdict(dataclasses.replace(status_of(), phase="step"))

    def stacks(self, timeout: float) -> str:
        return ""

    def post(self, path: str, document: Any, timeout: float) -> None:
        pass


def watching(peers: list[Slow], stall: float, patience: Patience = LEAVING) -> tuple[Monitor, list[int]]:
    codes: list[int] = []
    made = [
        Peer(i, client, History(f"worker:{i}", "", time.monotonic()), patience)  # type: ignore[arg-type]
        for i, client in enumerate(peers, 1)
    ]
    return Monitor(0, "worker:0", "", made, Limits(stall), end=codes.append, patience=ALARMED, watching=patience), codes


@pytest.mark.parametrize("seconds", [0.3, 0.02])
def test_answers_that_are_long_under_way_are_answers(seconds: float):
    quick = LEAVING._replace(silence=0.2, again=0.2)
    monitor, codes = watching([Slow(seconds)], 1.0, quick)
    silent = []
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        time.sleep(monitor._look() / 5)
        silent.append(monitor.workers()[1].silent)
    assert codes == []
    assert monitor.workers()[1].status is not None
    assert set(silent) == {0.0}, silent
    assert monitor.peers[0].seconds_to_answer >= max(quick.silence, 2.5 * seconds)


@pytest.mark.nightly
def test_those_who_are_cut_off_keep_the_monitor_from_nothing(capfd: Any):
    """A look at many of them is no pause of its own process, for which they would be forgiven, again and again."""
    monitor, codes = watching([Slow(0.0) for _ in range(20)], stall=3.0)
    monitor._look()
    for peer in monitor.peers[1:]:
        peer.client.seconds = float("inf")  # type: ignore[attr-defined]
    cut = time.monotonic()
    while not codes and time.monotonic() < cut + 30:
        begun = time.monotonic()
        pause = monitor._look()
        if not codes:
            assert time.monotonic() - begun < 2.5
            time.sleep(pause)
    assert codes == [70]
    said = capfd.readouterr().err
    assert "had been stopped" not in said
    assert "worker:2 (address unknown), worker:3" in said
    assert "worker:1 (address unknown)" not in said


def test_a_pause_of_the_process_within_a_look_is_noticed(monkeypatch: pytest.MonkeyPatch):
    time_now = [0.0]
    peer = Peer(1, Slow(0.0), History("worker:1", "", 0.0))  # type: ignore[arg-type]
    codes: list[int] = []
    monitor = Monitor(0, "worker:0", "", [peer], Limits(10.0), end=codes.append, clock=lambda: time_now[0])
    peer.history.answered(Status("step"), 0.0)
    peer.history.unheard()
    monkeypatch.setattr(monitor.observer._asking, "begin", lambda workers: None)
    monkeypatch.setattr(monitor.observer._asking, "wait", lambda seconds: time_now.__setitem__(0, 60.0))
    monitor._look()
    assert monitor.workers()[1].silent == 0.0
    real = monitor_module.diagnose
    monkeypatch.setattr(monitor.observer._asking, "wait", lambda seconds: None)

    def stopped_before(*arguments: Any) -> Any:
        time_now[0] += 60.0
        return real([dataclasses.replace(seen, silent=60.0) for seen in arguments[0]], arguments[1])

    monkeypatch.setattr(monitor_module, "diagnose", stopped_before)
    monitor._look()
    assert codes == []


def test_a_goodbye_is_final():
    history = History("worker:1", "", 0.0)
    history.ended("done", (0, 0))
    history.answered(Status("step"), 1.0)  # It was under way for longer.
    assert history.status is not None
    assert history.status.ended == "done"
