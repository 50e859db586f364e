"""What becomes of Ray's failures at the start, with a Ray that fails as told."""

from __future__ import annotations

import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from replicax.compat.ray_node import patient
from replicax.errors import ClusterError, ClusterTimeoutError
from replicax.ray_cluster import attaching
from replicax.ray_cluster.calls_with_deadline import done_within
from replicax.ray_cluster.deadline import Deadline

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
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(ClusterError, match="Is it there"),
    ):
        attaching.attach(f"127.0.0.1:{listener.getsockname()[1]}", Deadline(10))


def test_a_cluster_that_is_not_there_is_waited_for_as_long_as_was_said():
    with pytest.raises(ClusterTimeoutError, match=r"0\.3 s.*the head"):
        attaching.attach("127.0.0.1:1", Deadline(0.3))


@pytest.mark.parametrize("refuses", [False, True])
def test_a_cluster_that_asks_for_no_token_is_given_none(refuses, failures, monkeypatch, caplog):
    monkeypatch.setenv("REPLICAX_TOKEN", "secret")
    seen = []
    monkeypatch.setattr(ray, "init", lambda **_: seen.append(os.environ["RAY_AUTH_MODE"]))

    def alive(request: bytes, context: grpc.ServicerContext) -> bytes:
        if refuses:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        return b""

    head = grpc.server(ThreadPoolExecutor(1))
    calls = {"CheckAlive": grpc.unary_unary_rpc_method_handler(alive)}
    head.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("ray.rpc.NodeInfoGcsService", calls)])
    port = head.add_insecure_port("127.0.0.1:0")
    head.start()
    try:
        attaching.attach(f"127.0.0.1:{port}", Deadline(30)).close()
    finally:
        head.stop(None).wait(30)
    assert seen == ["token" if refuses else "disabled"]
    assert ("asks for no token" in caplog.text) is not refuses


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
