"""The coordinator's view of the workers, while Ray does not answer."""

from __future__ import annotations

import threading
import time

import pytest

import replicax.parameter_server.scheduling.worker_actors as workers_module
from replicax.parameter_server.actors.messages import Report
from replicax.parameter_server.scheduling.worker_actors import WorkerActors
from replicax.ray_cluster.deadline import PATIENCE
from tests.parameter_server.fakes import FakeCluster

SOON = 20.0


class Door:
    """Where calls of Ray stand until it is opened, as they do while its head is out of reach."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *_: object) -> dict[str, object]:
        self.reached.set()
        assert self.opened.wait(SOON)
        return {}


def test_a_start_that_does_not_return_holds_nobody_up_and_comes_too_late(fake_ray, monkeypatch):
    workers = WorkerActors(FakeCluster(1, 1), [], PATIENCE)
    door, settings_for = Door(), workers_module.settings_for
    monkeypatch.setattr(workers_module, "settings_for", door)
    late = threading.Thread(target=workers.start, args=(0, 1), daemon=True)
    late.start()
    assert door.reached.wait(SOON)
    monkeypatch.setattr(workers_module, "settings_for", settings_for)
    begin = time.monotonic()
    workers.start(0, 2)
    second = workers.ping(0, 2)
    assert second is not None
    assert isinstance(second.result(SOON), Report)
    assert time.monotonic() - begin < SOON / 2
    door.opened.set()
    late.join(SOON)
    assert not late.is_alive()
    assert workers.ping(0, 1) is None
    third = workers.ping(0, 2)
    assert third is not None
    assert isinstance(third.result(SOON), Report)
    workers.close()


def test_ending_a_worker_does_not_wait_for_a_ray_that_does_not_answer(fake_ray, monkeypatch):
    cluster = FakeCluster(1, 1)
    workers = WorkerActors(cluster, [], PATIENCE._replace(silence=0.2))
    workers.start(0, 1)
    ping = workers.ping(0, 1)
    assert ping is not None
    workers.note_report(0, ping.result(SOON))
    door = Door()
    monkeypatch.setattr("ray.kill", door)
    monkeypatch.setattr(cluster, "end_process", lambda *_: pytest.fail("Ray was asked for more"))
    begin = time.monotonic()
    workers.end(0, 1)
    assert door.reached.is_set()
    assert time.monotonic() - begin < SOON / 2
    door.opened.set()
