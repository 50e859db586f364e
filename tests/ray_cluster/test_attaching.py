"""What becomes of Ray's failures at the start, with a Ray that fails as told."""

from __future__ import annotations

import threading
import time

import pytest

from replicax.compat.ray_node import patient
from replicax.errors import ClusterError
from replicax.ray_cluster import attaching
from replicax.ray_cluster.calls_with_deadline import done_within

ray = pytest.importorskip("ray")
TOO_SLOW = "The current node timed out during startup. This could happen because some of the raylet failed to startup."


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What `ray.init` raises, one after the other; then it does nothing."""
    left: list[Exception] = []

    def init(**_: object) -> None:
        if left:
            raise left.pop(0)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return left


def test_a_node_that_does_not_come_up_in_time_is_started_again(failures: list[Exception]):
    failures += [Exception(TOO_SLOW)]
    attaching.embed(dashboard=False).close()
    assert failures == []


def test_a_node_that_never_comes_up_is_an_error_of_ours_with_a_cure(failures: list[Exception]):
    failures += [Exception(TOO_SLOW)] * 3
    with pytest.raises(ClusterError, match=r"timed out during startup.*longer `start_timeout`") as raised:
        attaching.embed(dashboard=False)
    assert type(raised.value.__cause__) is Exception
    assert len(failures) == 1


def test_what_another_try_cannot_mend_is_not_tried_again(failures: list[Exception]):
    failures += [ValueError("no such option"), ValueError("no such option")]
    with pytest.raises(ClusterError, match="no such option"):
        attaching.embed(dashboard=False)
    assert len(failures) == 1


def test_another_cluster_that_cannot_be_connected_with_is_an_error_of_ours(failures: list[Exception]):
    failures += [Exception(TOO_SLOW)]
    with pytest.raises(ClusterError, match="Is it there"):
        attaching.attach("127.0.0.1:1")


def test_ray_waits_longer_for_its_processes_than_it_would():
    tries = []

    def get_node(address: str) -> str:
        tries.append(address)
        if len(tries) < 3:
            raise RuntimeError("not there")
        return "node"

    assert patient(get_node, 20)("here") == "node"
    tries.clear()
    with pytest.raises(RuntimeError, match="not there"):
        patient(get_node, 0)("here")


def test_a_call_that_does_not_return_is_left():
    go_on = threading.Event()
    begin = time.monotonic()
    assert not done_within(0.2, go_on.wait)
    assert time.monotonic() - begin < 10
    go_on.set()
    assert done_within(10, lambda: None)
    with pytest.raises(ValueError, match="mine"):
        done_within(10, lambda: int("mine"))
