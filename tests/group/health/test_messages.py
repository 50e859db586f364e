"""The number of messages that the watcher sends: one a second to each peer, and none that belongs to a step."""

from __future__ import annotations

import pytest

from replicax.group.health.client import Client
from replicax.group.health.peers import WATCHING
from replicax.group.health.programs import AnnouncedProgram
from replicax.runtime.activity import now
from replicax.runtime.calls import Calls
from tests.group.health.workers import Worker


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that this process has asked."""
    paths: list[str] = []
    ask = Client._ask

    def noted(self: Client, method: str, path: str, *rest: object) -> str:
        paths.append(path)
        return ask(self, method, path, *rest)

    monkeypatch.setattr(Client, "_ask", noted)
    return paths


def test_an_idle_worker_asks_each_peer_once_a_second(workers: list[Worker], asked: list[str]):
    pauses = [workers[0].monitor._look() for _ in range(5)]
    assert pauses == [WATCHING.again] * 5 == [1.0] * 5
    assert asked == ["/status"] * 5


def test_a_step_sends_no_message(workers: list[Worker], asked: list[str], monkeypatch: pytest.MonkeyPatch):
    watcher, peer = workers[0].monitor, workers[1].monitor
    monkeypatch.setattr(now, "monitor", watcher)
    peer.programs.announce(AnnouncedProgram("step", ""))
    watcher._look()  # It compares programs with peers that have answered.
    asked.clear()
    calls = Calls("step", shared=True)
    counts = []
    for number in range(1000):
        with calls.one() as call:
            assert call is not None
            call.prepare(None)
            if number == 500:
                assert watcher._look() == WATCHING.again
        counts.append(len(asked))
    assert watcher.order.last[0] == 1000
    # The programs are compared once, before the first call.
    assert set(asked[: counts[0]]) == {"/programs/0"}
    assert asked[counts[0] :] == ["/status"]
