"""Messages between all processes; threads stand for them here."""

from __future__ import annotations

import time

import pytest

from replicax.cluster import exchange
from replicax.cluster.exchange import Exchanges
from replicax.errors import BarrierTimeoutError
from tests.cluster.fake_store import FakeStore, in_processes


@pytest.mark.parametrize("count", [1, 2, 5])
def test_all_get_all_messages_in_order_again_and_again(count: int):
    def run(index, exchanges):
        return [exchanges.all(f"{turn} of {index}".encode()) for turn in range(4)]

    expected = [[f"{turn} of {index}".encode() for index in range(count)] for turn in range(4)]
    assert in_processes(count, run) == [expected] * count


@pytest.mark.parametrize("length", [0, 1, 2 * 2**20, 5 * 2**20 + 1])
def test_messages_of_any_length(length: int):
    messages = [b"", bytes(length), b"x" * length]
    found = in_processes(3, lambda index, exchanges: exchanges.all(messages[index]))
    assert found == [messages] * 3


def test_what_all_have_read_is_deleted():
    store = FakeStore()
    alone = Exchanges(0, 1, store)
    for _ in range(12):
        alone.all(b"x")
    assert [*store.values] == ["replicax/exchange/11/all/0"]


class Far(FakeStore):
    """A store behind a slow network: a question that is given up earlier than its answer can come has none."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        if timeout_s < 0.3:
            time.sleep(timeout_s)
            return None
        return super().get(key, timeout_s)


def test_answers_that_are_long_under_way_arrive(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(exchange, "_LOOK_UP_S", 0.1)
    store = Far()
    store.put("replicax/exchange/0/1/0", (1).to_bytes(4, "big") + b"theirs")
    assert Exchanges(0, 2, store, timeout_s=20.0).all(b"mine") == [b"mine", b"theirs"]


def test_who_does_not_come_is_named():
    def run(index, exchanges):
        return exchanges.all(b"") if index != 2 else None

    first, second, third = in_processes(3, run, timeout_s=0.2)
    assert third is None
    for error in (first, second):
        assert isinstance(error, BarrierTimeoutError)
    assert first.missing == (2,)
    assert second.missing == (0,)  # It waits for process 0, which waits for process 2.
    assert "exchange of values 1" in str(first)
