from __future__ import annotations

import collections
import itertools
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import pytest

from replicax.cluster import reachability
from replicax.cluster.patience import CONNECTING, Patience
from replicax.errors import ClusterError, ClusterTimeoutError
from tests.cluster.fake_store import FakeStore

NAMES = ["worker:0 at alpha:1", "worker:1 at beta:1", *(f"worker:{i} at gamma:{i}" for i in range(2, 9))]
ABSENT = "absent"
Agree = Callable[..., list[Any]]


@pytest.fixture
def agree() -> Agree:
    """Lets processes agree, each with the address that it is given, and returns what came of it for each."""
    store = FakeStore()

    def run(
        ips: list[str], timeout_s: float = 20.0, turn: int | None = 0, patience: Patience = CONNECTING
    ) -> list[Any]:
        results: list[Any] = [None] * len(ips)

        def process(index: int) -> None:
            try:
                names = NAMES[: len(ips)]
                results[index] = reachability.agree_on_addresses(
                    index, names, "localhost:1", ips[index], timeout_s, store, turn, patience
                )
            except Exception as error:
                results[index] = error

        threads = [
            threading.Thread(target=process, args=(i,), name=f"process {i}") for i, ip in enumerate(ips) if ip != ABSENT
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    return run


def unreachable(monkeypatch: pytest.MonkeyPatch, ip: str) -> None:
    connect = reachability.socket.create_connection

    def connect_or_not(address: tuple[str, int], timeout: float) -> Any:
        if address[0] == ip:
            raise OSError(113, "No route to host")
        return connect(address, timeout=timeout)

    monkeypatch.setattr(reachability.socket, "create_connection", connect_or_not)


def test_each_connects_with_all_others(agree: Agree):
    assert agree(["127.0.0.1", "127.0.0.2", "127.0.0.3"]) == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]


def test_an_address_that_only_the_others_know(agree: Agree, monkeypatch: pytest.MonkeyPatch):
    told = iter([["127.0.1.1"], ["10.9.9.9", "127.0.0.7"]])
    lock = threading.Lock()

    def resolve(host: str) -> list[str]:
        with lock:
            return next(told)

    monkeypatch.setattr(reachability, "resolve", resolve)
    monkeypatch.setattr(
        reachability, "is_loopback", lambda ip: ip == "127.0.1.1"
    )  # So that 127.0.0.7 may be of the network.
    assert agree(["", "127.0.0.2"]) == ["127.0.0.7", "127.0.0.2"]


def test_all_learn_who_cannot_connect_with_whom(agree: Agree, monkeypatch: pytest.MonkeyPatch):
    unreachable(monkeypatch, "127.0.0.2")
    errors = agree(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
    assert all(isinstance(error, ClusterError) for error in errors), errors
    assert len({str(error) for error in errors}) == 1
    text = str(errors[0])
    for i, ip in ((0, "127.0.0.1"), (2, "127.0.0.3")):
        assert f"{NAMES[i]} ({ip}) cannot connect with {NAMES[1]} (127.0.0.2:" in text
    assert "No route to host" in text
    assert "Open all ports above 1024" in text


def test_with_a_network_of_their_own_they_are_warned(
    agree: Agree, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    unreachable(monkeypatch, "127.0.0.2")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with caplog.at_level(logging.WARNING):
        assert agree(["127.0.0.1", "127.0.0.2"]) == ["127.0.0.1", "127.0.0.2"]
    assert "cannot connect with worker:1 at beta:1" in caplog.text


def test_who_is_gone_is_named(agree: Agree):
    errors = agree(["127.0.0.1", ABSENT, "127.0.0.3"], 0.3, patience=CONNECTING._replace(start=0.0))
    assert isinstance(errors[0], ClusterTimeoutError)
    assert "worker:1 at beta:1" in str(errors[0])
    assert isinstance(errors[2], ClusterTimeoutError)
    assert "worker:1 at beta:1" in str(errors[2])  # Process 0 has told it.


def test_a_second_agreement_is_counted_by_itself(agree: Agree, monkeypatch: pytest.MonkeyPatch):
    class OfEach:
        """What `itertools.count` is in each process."""

        def __init__(self) -> None:
            self.counts = collections.defaultdict(itertools.count)

        def __next__(self) -> int:
            return next(self.counts[threading.current_thread().name])

    monkeypatch.setattr(reachability, "_turns", OfEach())
    for _ in range(2):
        assert agree(["127.0.0.1", "127.0.0.2"], turn=None) == ["127.0.0.1", "127.0.0.2"]


def test_not_all_problems_are_shown(agree: Agree, monkeypatch: pytest.MonkeyPatch):
    unreachable(monkeypatch, "127.0.0.9")
    for error in agree([f"127.0.0.{i}" for i in range(1, 10)]):
        assert isinstance(error, ClusterError)
        assert str(error).count("cannot connect with") == 5
        assert "; and 3 more" in str(error)
