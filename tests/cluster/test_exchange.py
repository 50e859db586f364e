"""Exchanges between processes, which are threads here, with a store in memory."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from replicax.cluster.exchange import (
    AbsentError,
    ClosedError,
    Exchange,
    FailedElsewhereError,
    NumberedExchanges,
)
from replicax.errors import BarrierTimeoutError, ContextError
from tests.cluster.fake_store import FakeStore, exchanging, in_processes


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
    alone = NumberedExchanges(0, 1, store)
    for _ in range(12):
        alone.all(b"x")
    assert [*store.values] == ["replicax/exchange/11/all/0/0"]


class Far(FakeStore):
    """A store behind a slow network: a question that is given up earlier than its answer can come has none."""

    def get(self, key: str, timeout_s: float) -> bytes | None:
        if timeout_s < 0.6:
            time.sleep(timeout_s)
            return None
        return super().get(key, timeout_s)


def test_answers_that_are_long_under_way_arrive():
    store = Far()
    store.put("replicax/exchange/0/1/0", (1).to_bytes(4, "big") + b"theirs")
    assert NumberedExchanges(0, 2, store, timeout_s=20.0).all(b"mine") == [b"mine", b"theirs"]


def test_who_does_not_come_is_named():
    def run(index, exchanges):
        return exchanges.all(b"") if index != 2 else None

    first, second, third = in_processes(3, run, timeout_s=0.2)
    assert third is None
    for error in (first, second):
        assert isinstance(error, BarrierTimeoutError)
    assert first.missing == second.missing == (2,)  # Process 0 knows it, and tells the others.
    assert "exchange of values 1" in str(first)


# One exchange.


@pytest.mark.parametrize("method", ["exchange", "exchange_through_first"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_each_process_gets_the_values_of_all_in_their_order(method: str, count: int):
    found = exchanging(count, lambda process, exchange: getattr(exchange, method)("hello", b"%d" % process))
    assert found == [[b"%d" % process for process in range(count)]] * count


def test_some_of_the_processes_exchange_values_among_themselves():
    store = FakeStore()

    def run(process: int) -> list[bytes]:
        return Exchange("test", process, (1, 3), store=store).exchange("hello", b"%d" % process)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, (1, 3))) == [[b"1", b"3"]] * 2


def test_all_missing_processes_are_named():
    def run(process, exchange):
        return exchange.exchange("hello") if process in (0, 2) else None

    first, second, third, fourth = exchanging(4, run, timeout_s=0.3)
    assert (second, fourth) == (None, None)
    for error in (first, third):
        assert isinstance(error, AbsentError)
        assert (error.stage, error.missing) == ("hello", (1, 3))


def test_a_late_process_still_counts_before_the_deadline():
    def run(process, exchange):
        time.sleep(0.4 * process)
        return exchange.exchange("hello", b"%d" % process)

    assert exchanging(2, run, timeout_s=10.0) == [[b"0", b"1"]] * 2


def test_a_process_that_comes_after_the_deadline_finds_those_that_have_given_up():
    def run(process, exchange):
        time.sleep(0.5 * process)
        return exchange.exchange("hello", b"%d" % process)

    first, second = exchanging(2, run, timeout_s=0.1)
    assert isinstance(first, AbsentError)
    assert first.missing == (1,)
    assert second == [b"0", b"1"]  # Whoever needs one answer for all lets `decide` give it.


def test_only_one_value_is_decided():
    found = exchanging(5, lambda process, exchange: exchange.decide("who", b"%d" % process))
    assert len(set(found)) == 1
    assert found[0] in {b"%d" % process for process in range(5)}


def test_what_nobody_has_decided_is_none():
    assert exchanging(1, lambda process, exchange: exchange.decided("who")) == [None]


def test_rounds_that_overlap_do_not_mix():
    """Process 0 tells the values of two rounds before the others have read those of the first."""
    ahead = threading.Event()

    def run(process, exchange):
        if process == 0:
            exchange.tell("0", b"first of 0")
            exchange.tell("1", b"second of 0")
            ahead.set()
        else:
            ahead.wait(10)
            exchange.tell("0", b"first of %d" % process)
            exchange.tell("1", b"second of %d" % process)
        return exchange.collect("0"), exchange.collect("1")

    firsts, seconds = ([b"%s of %d" % (what, i) for i in range(3)] for what in (b"first", b"second"))
    assert exchanging(3, run) == [(firsts, seconds)] * 3


def test_two_exchanges_at_once_do_not_mix():
    store = FakeStore()

    def run(arguments: tuple[str, int]) -> list[bytes]:
        prefix, process = arguments
        exchange = Exchange(prefix, process, range(2), store=store, timeout_s=10.0)
        return exchange.exchange("0", f"{prefix} {process}".encode())

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, [("a", 0), ("b", 0), ("b", 1), ("a", 1)]))
    assert found == [[b"a 0", b"a 1"], [b"b 0", b"b 1"], [b"b 0", b"b 1"], [b"a 0", b"a 1"]]


def test_the_error_of_one_process_reaches_all():
    def run(process, exchange):
        return exchange.run("written", lambda: 1 / 0 if process == 1 else process)

    first, second, third = exchanging(3, run)
    assert isinstance(second, ZeroDivisionError)
    for error in (first, third):
        assert isinstance(error, FailedElsewhereError)
        assert (error.process, error.problem) == (1, "ZeroDivisionError: division by zero")


def test_each_process_gets_its_own_result_when_all_have_succeeded():
    assert exchanging(3, lambda process, exchange: exchange.run("written", lambda: process)) == [0, 1, 2]


def test_each_process_gets_the_results_of_all_when_all_have_succeeded():
    def run(process, exchange):
        return exchange.run_and_tell("written", lambda: bytes([process]) * process)

    assert exchanging(3, run) == [[b"", b"\1", b"\2\2"]] * 3


def test_an_own_error_is_not_hidden_by_processes_that_do_not_come():
    def run(process, exchange):
        return None if process else exchange.run("written", lambda: 1 / 0)

    error, _ = exchanging(2, run, timeout_s=0.2)
    assert isinstance(error, ZeroDivisionError)
    assert error.__notes__ == ["process 1 did not come to 'written' in time."]


def test_the_value_of_the_first_is_had_without_waiting_for_the_others():
    begin = time.monotonic()
    assert exchanging(1, lambda process, exchange: exchange.from_first("name", b"a")) == [b"a"]
    alone = Exchange("test", 0, range(3), store=FakeStore(), timeout_s=20.0)
    assert alone.from_first("name", b"a") == b"a"
    assert time.monotonic() - begin < 10
    assert exchanging(3, lambda process, exchange: exchange.from_first("name", b"%d" % process)) == [b"0"] * 3


def test_a_closed_exchange_wakes_who_waits_in_it():
    closed = threading.Event()
    exchange = Exchange("test", 0, range(2), store=FakeStore(), timeout_s=60.0, closed=closed)
    threading.Timer(0.1, closed.set).start()
    begin = time.monotonic()
    with pytest.raises(ClosedError):
        exchange.exchange("hello")
    assert time.monotonic() - begin < 20


def test_waiting_is_told_with_the_stage_and_for_whom():
    told = []

    @contextlib.contextmanager
    def waiting(stage, processes):
        told.append((stage, list(processes)))
        yield
        told.append("over")

    store = FakeStore()
    Exchange("test", 1, range(2), store=store).tell("hello")
    Exchange("test", 0, range(2), store=store, waiting=waiting).exchange("hello")
    assert told == [("hello", [1]), "over"]


def test_a_store_that_is_gone_is_an_error_that_says_so():
    class Gone(FakeStore):
        def get(self, key: str, timeout_s: float) -> bytes | None:
            raise jax.errors.JaxRuntimeError("UNAVAILABLE: connection refused")

    with pytest.raises(ContextError, match=r"Process 0 cannot reach the coordination service.*connection refused"):
        Exchange("test", 0, range(2), store=Gone()).exchange("hello")


def test_an_answer_of_the_store_is_not_called_out_of_reach():
    class Taken(FakeStore):
        def put(self, key: str, value: bytes) -> None:
            raise jax.errors.JaxRuntimeError(f"ALREADY_EXISTS: Config key {key} already exists.")

    with pytest.raises(ContextError, match=r"Process 0 was refused by the coordination service.*ALREADY_EXISTS") as got:
        Exchange("test", 0, range(2), store=Taken()).tell("hello")
    assert "cannot reach" not in str(got.value)


def test_of_many_processes_the_first_collects_for_all():
    store = FakeStore()
    found = exchanging(12, lambda process, exchange: exchange.exchange("hello", b"%d" % process), store=store)
    assert found == [[b"%d" % process for process in range(12)]] * 12
    assert "test/hello/all/0/0" in store.values


def test_of_many_processes_all_learn_from_the_first_which_are_missing():
    def run(process, exchange):
        return exchange.exchange("hello") if process not in (5, 11) else None

    for process, error in enumerate(exchanging(12, run, timeout_s=0.3)):
        if process not in (5, 11):
            assert isinstance(error, AbsentError)
            assert (error.stage, error.missing) == ("hello", (5, 11))
